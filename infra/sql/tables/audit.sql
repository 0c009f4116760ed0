-- The audit: every operation on an entitlement, including refusals (A1). It is partitioned by month in UTC, so that old
-- months are dropped instead of deleted row by row. A row without a monthly partition goes to the DEFAULT partition; it is
-- not lost, and an alarm reports it. Two SQL functions that run with the privileges of the schema owner create and drop
-- partitions.
--
-- The bridge compares events with the audit (G1), and history, traces and the change feed read it, all through SECURITY
-- DEFINER functions: the role of the functions can write rows, but not read them.

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
    version            bigint,
    status             text,
    purchase_id        text,
    source_address     inet,
    transaction_id     xid8        DEFAULT pg_current_xact_id(),
    starts_at          timestamptz,
    expires_at         timestamptz,
    changed_at         timestamptz,
    correlation_id     text,
    -- The primary key serves queries for the history of an entitlement, and is the identity that replication needs.
    PRIMARY KEY (user_id, stock_keeping_unit, occurred_at, operation_id),
    CONSTRAINT entitlement_audit_caller_length CHECK (char_length(caller) BETWEEN 1 AND 128),
    -- START, EXPIRING and EXPIRE are time events, which have the caller `grantwire`.
    CONSTRAINT entitlement_audit_operation
        CHECK (operation IN ('GRANT', 'REVOKE', 'EXTEND', 'START', 'EXPIRING', 'EXPIRE')),
    CONSTRAINT entitlement_audit_outcome
        CHECK (outcome IN ('APPLIED', 'ENTITLEMENT_STATE_CONFLICT', 'IDEMPOTENCY_KEY_CONFLICT')),
    -- An applied change has all of these columns, a refused operation none of them.
    CONSTRAINT entitlement_audit_applied
        CHECK (num_nulls(version, status, changed_at) = CASE outcome WHEN 'APPLIED' THEN 0 ELSE 3 END),
    CONSTRAINT entitlement_audit_version CHECK (version >= 1),
    CONSTRAINT entitlement_audit_status CHECK (status IN ('ACTIVE', 'REVOKED', 'EXPIRED')),
    CONSTRAINT entitlement_audit_purchase_id_length CHECK (char_length(purchase_id) BETWEEN 1 AND 128),
    CONSTRAINT entitlement_audit_correlation_id_length CHECK (char_length(correlation_id) BETWEEN 1 AND 128),
    -- One address, not a network.
    CONSTRAINT entitlement_audit_source_address
        CHECK (masklen(source_address) = CASE family(source_address) WHEN 4 THEN 32 ELSE 128 END),
    -- The role of the functions inserts rows, and must not be able to fill the disk with one of them.
    CONSTRAINT entitlement_audit_detail_length CHECK (octet_length(detail::text) <= 8192)
) PARTITION BY RANGE (occurred_at);

CREATE TABLE entitlement_audit_default PARTITION OF entitlement_audit DEFAULT;

COMMENT ON COLUMN entitlement_audit.operation_id IS
    'Equal to the event_id of the event that the operation caused, if it caused one.';
COMMENT ON COLUMN entitlement_audit.version IS
    'The version of the entitlement after the change; NULL if the operation was refused.';
COMMENT ON COLUMN entitlement_audit.status IS
    'The status of the entitlement after the change; NULL if the operation was refused.';
COMMENT ON COLUMN entitlement_audit.starts_at IS 'The start of the entitlement after the change, if it has one.';
COMMENT ON COLUMN entitlement_audit.expires_at IS 'The end of the entitlement after the change, if it has one.';
COMMENT ON COLUMN entitlement_audit.changed_at IS
    'updated_at of the entitlement after the change; NULL if the operation was refused. It is a moment before occurred_at, at which the row was written.';
COMMENT ON COLUMN entitlement_audit.source_address IS
    'The address that API Gateway received the request from; NULL if it named none.';
COMMENT ON COLUMN entitlement_audit.transaction_id IS
    'The transaction that wrote the row. A dump that is restored to another cluster keeps the ids of the old one, until installation_renew removes them.';
COMMENT ON COLUMN entitlement_audit.correlation_id IS
    'The id that API Gateway gave the request; NULL for time events.';

-- The change feed: applied changes in the order of their transaction ids (K9; ADR 0040).
CREATE INDEX entitlement_audit_changes ON entitlement_audit (transaction_id, occurred_at, operation_id)
    WHERE outcome = 'APPLIED';
-- The history of an entitlement, checks as of a past time (K8), and comparing events with the audit (G1): by version,
-- because a clock that is set back orders occurred_at otherwise (W6). It has only applied changes: an entitlement can have
-- millions of refused operations.
CREATE INDEX entitlement_audit_history ON entitlement_audit (user_id, stock_keeping_unit, version, changed_at)
    WHERE outcome = 'APPLIED';
-- Traces (T2). The newest rows of one value are found without reading all of them.
CREATE INDEX entitlement_audit_purchase ON entitlement_audit (purchase_id, occurred_at) WHERE purchase_id IS NOT NULL;
CREATE INDEX entitlement_audit_trace ON entitlement_audit (trace_id, occurred_at) WHERE trace_id IS NOT NULL;
CREATE INDEX entitlement_audit_correlation ON entitlement_audit (correlation_id, occurred_at)
    WHERE correlation_id IS NOT NULL;
CREATE INDEX entitlement_audit_key ON entitlement_audit ((detail->>'key_fingerprint'), occurred_at)
    WHERE detail->>'key_fingerprint' IS NOT NULL;
-- Event ids contain their time, so this small index finds the row of an event: rows are written in its order.
CREATE INDEX entitlement_audit_time ON entitlement_audit USING brin (occurred_at)
    WITH (pages_per_range = 32, autosummarize = on);

-- The minimum number of months that the functions must keep. Without a row they cannot drop any partition.
CREATE TABLE audit_retention (
    single      boolean PRIMARY KEY DEFAULT true,
    keep_months integer NOT NULL,
    CONSTRAINT audit_retention_single CHECK (single),
    CONSTRAINT audit_retention_months CHECK (keep_months >= 1)
);

COMMENT ON TABLE audit_retention IS
    'Written by migrations, as the schema owner. The role of the functions cannot shorten the retention of the audit.';

-- Rows can be added but not changed or deleted. occurred_at and transaction_id always have their defaults. The sweep reads
-- which months have rows in the DEFAULT partition.
GRANT INSERT (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail, version, status,
              purchase_id, source_address, starts_at, expires_at, changed_at, correlation_id)
   ON entitlement_audit TO grantwire_functions;
GRANT SELECT (occurred_at) ON entitlement_audit_default TO grantwire_functions;
