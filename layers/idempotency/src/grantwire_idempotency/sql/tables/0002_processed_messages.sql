-- The message store (SPEC C1, C3, C4): messages that consumers have seen, by idempotency key; who has claimed a key, and
-- which mark was completed with which result. Completed or not, a row may be deleted a while after it has expired.

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
    claimed_until   timestamptz,
    completed_by    text,
    completed_mark  bigint,
    completed_until timestamptz,
    result          text,
    failed_until    timestamptz,
    CONSTRAINT processed_messages_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 256),
    CONSTRAINT processed_messages_id_length CHECK (char_length(message_id) <= 256),
    CONSTRAINT processed_messages_type_length CHECK (char_length(message_type) <= 100),
    CONSTRAINT processed_messages_status CHECK (status IN ('processing', 'completed', 'failed')),
    CONSTRAINT processed_messages_claim
        CHECK ((claimed_by IS NULL) = (claimed_until IS NULL) AND (claimed_mark IS NULL OR claimed_by IS NOT NULL)),
    CONSTRAINT processed_messages_record
        CHECK ((completed_by IS NULL) = (completed_until IS NULL)
               AND (completed_by IS NOT NULL OR (completed_mark IS NULL AND result IS NULL))),
    CONSTRAINT processed_messages_marks CHECK (claimed_mark >= 0 AND completed_mark >= 0),
    -- Rows are deleted by expires_at (R3): nothing that still counts may be older than that.
    CONSTRAINT processed_messages_lifetime
        CHECK (expires_at = greatest(claimed_until, completed_until, failed_until))
);

CREATE INDEX processed_messages_expiry ON processed_messages (expires_at);

COMMENT ON TABLE processed_messages IS
    'One row for each message, job or entity that consumers have seen. A claim, a completed record and a failure each count until their own time; expires_at is the last of the three.';
COMMENT ON COLUMN processed_messages.status IS
    'What happened last. Whether it still counts is for the *_until columns to say.';
COMMENT ON COLUMN processed_messages.started_at IS 'When the key was last claimed.';
COMMENT ON COLUMN processed_messages.completed_at IS 'When the key was last completed.';
COMMENT ON COLUMN processed_messages.claimed_by IS 'Token of the claim; nobody else may complete the key while it is live.';
COMMENT ON COLUMN processed_messages.completed_mark IS
    'The order of what was completed, a version or a time; only a later one is new. NULL: completed for good.';
