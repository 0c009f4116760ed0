-- The tables of the idempotency library: stored responses of requests, processed messages, locks, and the guard of open
-- transactions.

-- Stored responses of requests, written in the transaction of the effect (I1 to I8). Only idempotency_begin and
-- idempotency_finish decide about a key.
CREATE TABLE idempotency_keys (
    caller          text        COLLATE "C" NOT NULL,
    route           text        COLLATE "C" NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    request_hash    text        COLLATE "C" NOT NULL,
    status_code     integer     NOT NULL,
    response_body   text        NOT NULL,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (caller, route, idempotency_key),
    CONSTRAINT idempotency_keys_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 255),
    -- A malformed request (400) and a fault (5xx) are never stored, so that a repeat runs (I3).
    CONSTRAINT idempotency_keys_stored_status
        CHECK (status_code BETWEEN 200 AND 399 OR status_code BETWEEN 401 AND 499),
    CONSTRAINT idempotency_keys_lifetime CHECK (expires_at > created_at)
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

COMMENT ON TABLE idempotency_keys IS
    'One row for each request with a stored response. A key is scoped by caller and route (I7).';
COMMENT ON COLUMN idempotency_keys.request_hash IS
    'Version of the canonical form and SHA-256 of the canonical request, as "v1:<hex>".';

-- The store (C1, C3, C4): the claim, the completion and the failure of each key. A cleanup deletes a row some time after it
-- has expired.
CREATE TABLE processed_messages (
    idempotency_key text        COLLATE "C" PRIMARY KEY,
    message_id      text        NOT NULL,
    message_type    text        NOT NULL,
    status          text        NOT NULL,
    started_at      timestamptz NOT NULL,
    completed_at    timestamptz,
    error           text,
    expires_at      timestamptz NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    claimed_by      text,
    claimed_mark    bigint,
    claimed_hash    text,
    claimed_until   timestamptz,
    completed_by    text,
    completed_mark  bigint,
    completed_hash  text,
    completed_until timestamptz,
    result          text,
    result_until    timestamptz,
    failed_until    timestamptz,
    CONSTRAINT processed_messages_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 256),
    CONSTRAINT processed_messages_id_length CHECK (char_length(message_id) <= 256),
    CONSTRAINT processed_messages_type_length CHECK (char_length(message_type) <= 100),
    CONSTRAINT processed_messages_status CHECK (status IN ('processing', 'completed', 'failed')),
    CONSTRAINT processed_messages_claim
        CHECK ((claimed_by IS NULL) = (claimed_until IS NULL)
               AND (claimed_by IS NOT NULL OR (claimed_mark IS NULL AND claimed_hash IS NULL))),
    CONSTRAINT processed_messages_record
        CHECK ((completed_by IS NULL) = (completed_until IS NULL)
               AND (completed_by IS NOT NULL
                    OR (completed_mark IS NULL AND completed_hash IS NULL AND result IS NULL))),
    CONSTRAINT processed_messages_marks CHECK (claimed_mark >= 0 AND completed_mark >= 0),
    CONSTRAINT processed_messages_hash_length
        CHECK (char_length(claimed_hash) <= 100 AND char_length(completed_hash) <= 100),
    -- A cleanup deletes rows by expires_at (R3), so no live claim, completion or failure may outlast it.
    CONSTRAINT processed_messages_lifetime
        CHECK (expires_at = greatest(claimed_until, completed_until, failed_until))
);

CREATE INDEX processed_messages_expiry ON processed_messages (expires_at);

COMMENT ON TABLE processed_messages IS
    'One row for each message, job or entity. A claim, a completion and a failure expire separately; expires_at is the last of the three times.';
COMMENT ON COLUMN processed_messages.status IS
    'The last event. The *_until columns say whether it is still live.';
COMMENT ON COLUMN processed_messages.started_at IS 'When the key was last claimed.';
COMMENT ON COLUMN processed_messages.completed_at IS 'When the key was last completed.';
COMMENT ON COLUMN processed_messages.claimed_by IS 'Token of the claim. While the claim is live, only its holder can complete the key.';
COMMENT ON COLUMN processed_messages.completed_mark IS
    'Version or time of the completion; only a later mark is new. NULL: every mark is a duplicate.';
COMMENT ON COLUMN processed_messages.completed_hash IS
    'Hash of what the completed run was called with. The same key with another hash is a conflict. NULL: not checked.';
COMMENT ON COLUMN processed_messages.result_until IS
    'When the result expires, if that is before the end of the completion. NULL: with the completion.';

-- Distributed locks (C7): one row for each lock that is held, with a lease that expires if the owner does not extend it.
-- Releasing a lock deletes its row. Another owner can take over a row with an expired lease, and a cleanup deletes such a row
-- some time later.
CREATE TABLE distributed_locks (
    lock_key    text        COLLATE "C" PRIMARY KEY,
    owner       text        NOT NULL,
    acquired_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT distributed_locks_key_length CHECK (char_length(lock_key) BETWEEN 1 AND 256),
    CONSTRAINT distributed_locks_owner_length CHECK (char_length(owner) BETWEEN 1 AND 256)
);

CREATE INDEX distributed_locks_expiry ON distributed_locks (lease_until);

-- Fencing numbers of claims and locks. One sequence for all keys: the number of a later claim on a key is higher, also if the
-- row was deleted in between. A number is drawn when the row is written, so no row has it.
CREATE SEQUENCE idempotency_fences AS bigint;

-- A row exists only inside an open transaction of a guard: guarded_transaction_begin inserts it and
-- guarded_transaction_end deletes it. A COMMIT between the two fails, because the deferred trigger finds the row.
CREATE UNLOGGED TABLE guarded_transactions (
    guard text COLLATE "C" PRIMARY KEY
);

COMMENT ON TABLE guarded_transactions IS
    'The open transactions of guards. A row is never committed.';
