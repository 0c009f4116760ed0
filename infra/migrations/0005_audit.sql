-- Every operation on an entitlement, refusals included (SPEC A1), partitioned by month in UTC so that old months are
-- dropped instead of deleted row by row. A row that no month takes lands in the DEFAULT partition: never lost, and
-- alarming. The months are made and dropped by two functions that run with the owner's privileges.

CREATE TABLE entitlement_audit (
    operation_id       uuid        NOT NULL,
    occurred_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    caller             text        NOT NULL,
    operation          text        NOT NULL,
    outcome            text        NOT NULL,
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    trace_id           text,
    detail             jsonb       NOT NULL,
    -- The one index answers "what happened to this entitlement" and is the identity that replication needs.
    PRIMARY KEY (user_id, stock_keeping_unit, occurred_at, operation_id),
    CONSTRAINT entitlement_audit_operation CHECK (operation IN ('GRANT', 'REVOKE')),
    CONSTRAINT entitlement_audit_outcome
        CHECK (outcome IN ('APPLIED', 'ENTITLEMENT_STATE_CONFLICT', 'IDEMPOTENCY_KEY_CONFLICT'))
) PARTITION BY RANGE (occurred_at);

CREATE TABLE entitlement_audit_default PARTITION OF entitlement_audit DEFAULT;

COMMENT ON COLUMN entitlement_audit.operation_id IS
    'Equals the event_id of the event that the operation caused, if it caused one.';

-- How many months of the audit the owner lets the functions keep at least. No row: they may drop none.
CREATE TABLE audit_retention (
    single      boolean PRIMARY KEY DEFAULT true,
    keep_months integer NOT NULL,
    CONSTRAINT audit_retention_single CHECK (single),
    CONSTRAINT audit_retention_months CHECK (keep_months >= 1)
);

COMMENT ON TABLE audit_retention IS
    'Written by migrations, as the owner: whoever has only the rights of the functions cannot shorten the audit''s memory.';

-- The audit can be added to and never be changed: occurred_at is the database's to say. The sweep reads which months the
-- DEFAULT partition has rows of.
GRANT INSERT (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
   ON entitlement_audit TO grantwire_functions;
GRANT SELECT (occurred_at) ON entitlement_audit_default TO grantwire_functions;
