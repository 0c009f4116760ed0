-- Counts of key conflicts (SPEC G6; ADR 0033). The first conflict of a key on a day writes an audit row; later ones of
-- that day only raise the count here. The audit itself stays append-only: the functions' role can update no row of it.

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
