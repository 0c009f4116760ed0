-- Fencing numbers of claims and locks, results that expire before the version of their entity, redirects as stored
-- responses, and the guard of open transactions.

-- One sequence for all keys: the number of a later claim on a key is higher, also if the row was deleted in between.
CREATE SEQUENCE idempotency_fences AS bigint;

ALTER TABLE processed_messages
    ADD COLUMN fence        bigint NOT NULL DEFAULT 0,
    ADD COLUMN result_until timestamptz;

COMMENT ON COLUMN processed_messages.fence IS
    'Fencing number of the last claim: higher than that of every earlier claim on the key.';
COMMENT ON COLUMN processed_messages.result_until IS
    'When the result expires, if that is before the end of the completion. NULL: with the completion.';

ALTER TABLE distributed_locks ADD COLUMN fence bigint NOT NULL DEFAULT 0;

ALTER TABLE idempotency_keys
    DROP CONSTRAINT idempotency_keys_stored_status,
    ADD CONSTRAINT idempotency_keys_stored_status
        CHECK (status_code BETWEEN 200 AND 399 OR status_code BETWEEN 401 AND 499);

-- A row exists only inside an open transaction of a guard: guarded_transaction_begin inserts it and
-- guarded_transaction_end deletes it. A COMMIT between the two fails, because the deferred trigger finds the row.
CREATE UNLOGGED TABLE guarded_transactions (
    guard text COLLATE "C" PRIMARY KEY
);

COMMENT ON TABLE guarded_transactions IS
    'The open transactions of guards. A row is never committed.';
