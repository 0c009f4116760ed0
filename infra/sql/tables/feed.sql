-- The change feed (K9, ADR 0040), which reads the audit: the identity in its cursors, and the requests that wait.

-- A part of every cursor. SELECT installation_renew() gives a new identity.
CREATE TABLE installation (
    single                 boolean PRIMARY KEY DEFAULT true,
    installation_id        uuid    NOT NULL DEFAULT gen_random_uuid(),
    -- The last change that was dropped with a month of the audit, and the identity of the installation at that time.
    dropped_in             text,
    dropped_transaction_id xid8,
    dropped_occurred_at    timestamptz,
    dropped_operation_id   uuid,
    CONSTRAINT installation_single CHECK (single),
    CONSTRAINT installation_dropped CHECK (
        num_nulls(dropped_in, dropped_transaction_id, dropped_occurred_at, dropped_operation_id) IN (0, 4))
);

COMMENT ON TABLE installation IS 'Exactly one row. Only the schema owner changes it.';

INSERT INTO installation DEFAULT VALUES;

GRANT SELECT (installation_id) ON installation TO grantwire_functions;

-- Requests that wait for a change, over all functions. A row counts until its time ends, so that a function that was
-- killed frees its place. The rows have no meaning after a crash of PostgreSQL.
CREATE UNLOGGED TABLE change_feed_waiters (
    waiter_id uuid        PRIMARY KEY,
    client_id text        COLLATE "C" NOT NULL,
    until     timestamptz NOT NULL
);

GRANT SELECT, INSERT, DELETE ON change_feed_waiters TO grantwire_functions;
