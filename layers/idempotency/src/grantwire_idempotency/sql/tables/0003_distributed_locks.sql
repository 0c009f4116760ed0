-- Locks that processes on several machines share (SPEC C7): a row for each lock that is held, with a lease that ends by
-- itself if its owner does not come back. Releasing a lock deletes its row; a row that was left behind is free to be
-- taken, and may be deleted a while after its lease has ended.

CREATE TABLE distributed_locks (
    lock_key    text        COLLATE "C" PRIMARY KEY,
    owner       text        NOT NULL,
    acquired_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT distributed_locks_key_length CHECK (char_length(lock_key) BETWEEN 1 AND 256),
    CONSTRAINT distributed_locks_owner_length CHECK (char_length(owner) BETWEEN 1 AND 256)
);

CREATE INDEX distributed_locks_expiry ON distributed_locks (lease_until);
