-- The audit: every operation on an entitlement, including refusals (SPEC A1). It is partitioned by month in UTC, so
-- that old months are dropped instead of deleted row by row. A row without a monthly partition goes to the DEFAULT
-- partition; it is not lost, and an alarm reports it. Two SQL functions that run with the privileges of the schema
-- owner create and drop partitions.

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
    -- The primary key serves queries for the history of an entitlement, and is the identity that replication needs.
    PRIMARY KEY (user_id, stock_keeping_unit, occurred_at, operation_id),
    CONSTRAINT entitlement_audit_operation CHECK (operation IN ('GRANT', 'REVOKE')),
    CONSTRAINT entitlement_audit_outcome
        CHECK (outcome IN ('APPLIED', 'ENTITLEMENT_STATE_CONFLICT', 'IDEMPOTENCY_KEY_CONFLICT'))
) PARTITION BY RANGE (occurred_at);

CREATE TABLE entitlement_audit_default PARTITION OF entitlement_audit DEFAULT;

COMMENT ON COLUMN entitlement_audit.operation_id IS
    'Equal to the event_id of the event that the operation caused, if it caused one.';

-- The minimum number of months that the functions must keep. Without a row they cannot drop any partition.
CREATE TABLE audit_retention (
    single      boolean PRIMARY KEY DEFAULT true,
    keep_months integer NOT NULL,
    CONSTRAINT audit_retention_single CHECK (single),
    CONSTRAINT audit_retention_months CHECK (keep_months >= 1)
);

COMMENT ON TABLE audit_retention IS
    'Written by migrations, as the schema owner. The role of the functions cannot shorten the retention of the audit.';

-- Rows can be added but not changed or deleted, and occurred_at is always the time of the database. The sweep reads
-- which months have rows in the DEFAULT partition.
GRANT INSERT (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
   ON entitlement_audit TO grantwire_functions;
GRANT SELECT (occurred_at) ON entitlement_audit_default TO grantwire_functions;
