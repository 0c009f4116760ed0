-- Limits and privileges on the tables of the idempotency library, which does not know the roles of the service, and the
-- counts of key conflicts.

-- The role of the functions inserts stored responses, and must not be able to fill the disk with one of them.
ALTER TABLE idempotency_keys
    ADD CONSTRAINT idempotency_keys_caller_length CHECK (char_length(caller) BETWEEN 1 AND 128);

-- Caller, route and key of a stored response cannot be updated.
GRANT SELECT, INSERT, DELETE, UPDATE (request_hash, status_code, response_body, created_at, expires_at)
   ON idempotency_keys TO grantwire_functions;
GRANT SELECT, INSERT, UPDATE, DELETE ON processed_messages, distributed_locks TO grantwire_functions;
GRANT SELECT, INSERT, DELETE ON guarded_transactions TO grantwire_functions;
GRANT USAGE ON SEQUENCE idempotency_fences TO grantwire_functions;

-- The first conflict of a key on a day writes an audit row; later ones of that day only raise the count here (G6; ADR
-- 0033). The audit itself stays append-only: the functions' role can update no row of it.
CREATE TABLE key_conflicts (
    caller       text        COLLATE "C" NOT NULL,
    route        text        COLLATE "C" NOT NULL,
    -- SHA-256 of the idempotency key, in hex. Its first 12 digits are key_fingerprint in the audit.
    key_hash     text        COLLATE "C" NOT NULL,
    -- In UTC.
    day          date        NOT NULL,
    -- The audit row of the first conflict.
    operation_id uuid        NOT NULL,
    conflicts    bigint      NOT NULL DEFAULT 1,
    first_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (caller, route, key_hash, day),
    CONSTRAINT key_conflicts_hash_form CHECK (key_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT key_conflicts_count CHECK (conflicts >= 1)
);

-- For retention.
CREATE INDEX key_conflicts_last_at ON key_conflicts (last_at);

GRANT SELECT, DELETE, UPDATE (conflicts, last_at),
      INSERT (caller, route, key_hash, day, operation_id)
   ON key_conflicts TO grantwire_functions;
