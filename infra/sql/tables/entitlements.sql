-- The system of record (E1). Only SQL functions write to it. Key, entitlement, event, audit row and stored response commit
-- together or not at all (E6).
--
-- An entitlement can have a start and an end (K3 to K5; ADR 0038). The stored status is ACTIVE, REVOKED or EXPIRED.
-- SCHEDULED, and an end that no worker has recorded yet, are computed by the SQL function entitlement_state from the two
-- times and the clock. So an entitlement ends on time although no worker runs. The worker expire_entitlements records
-- start, notice and end as events with a version of their own.

CREATE TABLE entitlements (
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    status             text        NOT NULL,
    version            bigint      NOT NULL,
    updated_at         timestamptz NOT NULL,
    -- The start, if it was in the future when the entitlement was granted, or the time of the grant; NULL: not limited.
    starts_at          timestamptz,
    -- The end without grace; NULL: no end.
    expires_at         timestamptz,
    -- The purchase that set the two times; time events carry it.
    purchase_id        text,
    -- Whether the event EntitlementStarted is still to be recorded.
    start_pending      boolean     NOT NULL DEFAULT false,
    -- Whether the event EntitlementExpiring is still to be recorded for this end.
    expiring_pending   boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (user_id, stock_keeping_unit),
    CONSTRAINT entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED', 'EXPIRED')),
    CONSTRAINT entitlements_version CHECK (version >= 1),
    CONSTRAINT entitlements_times CHECK (expires_at > starts_at),
    CONSTRAINT entitlements_expired CHECK (status <> 'EXPIRED' OR expires_at IS NOT NULL),
    CONSTRAINT entitlements_pending CHECK (
        (NOT start_pending OR (status = 'ACTIVE' AND starts_at IS NOT NULL AND purchase_id IS NOT NULL))
        AND (NOT expiring_pending OR (status = 'ACTIVE' AND expires_at IS NOT NULL AND purchase_id IS NOT NULL))),
    CONSTRAINT entitlements_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT entitlements_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128),
    CONSTRAINT entitlements_purchase_id_length CHECK (char_length(purchase_id) BETWEEN 1 AND 128)
) WITH (fillfactor = 80);

COMMENT ON COLUMN entitlements.status IS 'The recorded status. Readers use the SQL function entitlement_state.';

-- For the worker: what starts, what expires soon, what ends. Rows without times are in none of them. Grace and notice are
-- settings, so no index contains them.
CREATE INDEX entitlements_starting ON entitlements (starts_at) WHERE start_pending;
CREATE INDEX entitlements_expiring ON entitlements (expires_at) WHERE expiring_pending;
CREATE INDEX entitlements_ending ON entitlements (expires_at) WHERE status = 'ACTIVE' AND expires_at IS NOT NULL;

-- A change that a caller or a time asks for, with who asked and why. Python sends a JSON object with these fields, so that
-- a new field changes no signature.
CREATE TYPE entitlement_change AS (
    operation_id       uuid,
    operation          text,
    user_id            text,
    stock_keeping_unit text,
    reason             text,
    purchase_id        text,
    starts_at          timestamptz,
    expires_at         timestamptz,
    caller             text,
    trace_id           text,
    -- NULL for time events, which no request made: the address that the request came from, and its id.
    source_address     inet,
    correlation_id     text
);

-- An entitlement is never deleted, and its primary key never changes.
GRANT SELECT, INSERT,
      UPDATE (status, version, updated_at, starts_at, expires_at, purchase_id, start_pending, expiring_pending)
   ON entitlements TO grantwire_functions;
