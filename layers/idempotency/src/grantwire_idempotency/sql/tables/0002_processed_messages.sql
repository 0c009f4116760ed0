-- The store of the idempotency library (SPEC C1, C3, C4): the claim, the completion and the failure of each key. The
-- sweep deletes a row some time after it has expired.

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
    -- The sweep deletes rows by expires_at (R3), so no live claim, completion or failure may outlast it.
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
