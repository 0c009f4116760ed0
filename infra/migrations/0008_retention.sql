-- What the hourly sweep needs (SPEC R1-R5, A1): an index for each policy, so that a batch reads only what it deletes,
-- and the way to drop an old month of the audit.

-- Messages that consumers have seen, by idempotency key (SPEC C1). Completed or not, a row is swept a while after it
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
    CONSTRAINT processed_messages_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 256),
    CONSTRAINT processed_messages_id_length CHECK (char_length(message_id) <= 256),
    CONSTRAINT processed_messages_type_length CHECK (char_length(message_type) <= 100),
    CONSTRAINT processed_messages_status CHECK (status IN ('processing', 'completed', 'failed'))
);

CREATE INDEX processed_messages_expiry ON processed_messages (expires_at);

CREATE INDEX processed_events_time ON processed_events (processed_at);
CREATE INDEX notifications_created_at ON notifications (created_at);
CREATE INDEX notification_dlq_closed_at ON notification_dlq (closed_at) WHERE closed_at IS NOT NULL;

-- Drops the oldest month of the audit that ended at least p_keep_months before the current month began (UTC), so that
-- every row is kept for that long; its name, or NULL if there is none to drop. One month for each call, and with a short
-- wait for its lock: grants wait behind it. The caller tries again another time. While there is a DEFAULT partition a
-- month cannot be detached without this lock.
CREATE FUNCTION entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamptz DEFAULT now())
RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '500ms' AS $$
DECLARE
    first_kept text := to_char(date_trunc('month', p_now AT TIME ZONE 'UTC') - make_interval(months => p_keep_months),
                               '"entitlement_audit_y"YYYY"m"MM');
    oldest     text;
BEGIN
    IF p_keep_months < 1 THEN
        RAISE EXCEPTION 'at least one month of the audit is kept, not %', p_keep_months
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- One maintainer at a time; nobody else notices this lock.
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT min(c.relname COLLATE "C") INTO oldest
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass
       AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$' AND c.relname COLLATE "C" < first_kept;
    IF oldest IS NOT NULL THEN
        EXECUTE format('DROP TABLE %I', oldest);
    END IF;
    RETURN oldest;
END
$$;
