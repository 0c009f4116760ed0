-- Distributed locks (SPEC C7): one row for each lock that is held, with a lease that expires if the owner does not
-- extend it. Releasing a lock deletes its row. Another owner can take over a row with an expired lease, and the sweep
-- deletes such a row some time later.

CREATE TABLE distributed_locks (
    lock_key    text        COLLATE "C" PRIMARY KEY,
    owner       text        NOT NULL,
    acquired_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT distributed_locks_key_length CHECK (char_length(lock_key) BETWEEN 1 AND 256),
    CONSTRAINT distributed_locks_owner_length CHECK (char_length(owner) BETWEEN 1 AND 256)
);

CREATE INDEX distributed_locks_expiry ON distributed_locks (lease_until);
