-- processed_messages becomes a store of the idempotency library (SPEC C1, C3, C4): who has claimed a key, which mark was
-- completed with which result, and the three functions that decide about a key. Each is one round trip, and harmless
-- when it is sent again after a lost connection: a claim is known by its token.

ALTER TABLE processed_messages
    ADD COLUMN claimed_by      text,
    ADD COLUMN claimed_mark    bigint,
    ADD COLUMN claimed_until   timestamptz,
    ADD COLUMN completed_by    text,
    ADD COLUMN completed_mark  bigint,
    ADD COLUMN completed_until timestamptz,
    ADD COLUMN result          text,
    ADD COLUMN failed_until    timestamptz;

UPDATE processed_messages
   SET claimed_by      = CASE status WHEN 'processing' THEN '' END,
       claimed_until   = CASE status WHEN 'processing' THEN expires_at END,
       completed_by    = CASE status WHEN 'completed' THEN '' END,
       completed_until = CASE status WHEN 'completed' THEN expires_at END,
       failed_until    = CASE status WHEN 'failed' THEN expires_at END;

ALTER TABLE processed_messages
    ADD CONSTRAINT processed_messages_claim
        CHECK ((claimed_by IS NULL) = (claimed_until IS NULL) AND (claimed_mark IS NULL OR claimed_by IS NOT NULL)),
    ADD CONSTRAINT processed_messages_record
        CHECK ((completed_by IS NULL) = (completed_until IS NULL)
               AND (completed_by IS NOT NULL OR (completed_mark IS NULL AND result IS NULL))),
    ADD CONSTRAINT processed_messages_marks CHECK (claimed_mark >= 0 AND completed_mark >= 0),
    -- The sweep (R3) goes by expires_at: nothing that still counts may be older than that.
    ADD CONSTRAINT processed_messages_lifetime
        CHECK (expires_at = greatest(claimed_until, completed_until, failed_until));

COMMENT ON TABLE processed_messages IS
    'One row for each message, job or entity that consumers have seen. A claim, a completed record and a failure each count until their own time; expires_at is the last of the three.';
COMMENT ON COLUMN processed_messages.status IS
    'What happened last. Whether it still counts is for the *_until columns to say.';
COMMENT ON COLUMN processed_messages.started_at IS 'When the key was last claimed.';
COMMENT ON COLUMN processed_messages.completed_at IS 'When the key was last completed.';
COMMENT ON COLUMN processed_messages.claimed_by IS 'Token of the claim; nobody else may complete the key while it is live.';
COMMENT ON COLUMN processed_messages.completed_mark IS
    'The order of what was completed, a version or a time; only a later one is new. NULL: completed for good.';

-- Whether a completed record makes this mark a duplicate; without a mark on either side it does.
CREATE FUNCTION processed_message_covers(m processed_messages, p_mark bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(m.completed_until > p_now, false) AND coalesce(p_mark <= m.completed_mark, true)
$$;

-- Whether somebody else has the key: a live claim with another token, or a completed record that covers this mark. The
-- one rule by which a claim is granted, a result is taken and a failure is noted.
CREATE FUNCTION processed_message_taken(m processed_messages, p_token text, p_mark bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(m.claimed_until > p_now AND m.claimed_by <> p_token, false)
        OR processed_message_covers(m, p_mark, p_now)
$$;

-- Claims a key. One of
--   NEW          it is claimed for p_token, until p_ttl from now
--   DUPLICATE    it was completed, at this mark or a later one: stored_result is what was stored then
--   IN_PROGRESS  somebody else has it, for at most another free_in
-- A duplicate is found by reading alone. Everything else is decided under the row's lock, by the INSERT: under READ
-- COMMITTED it waits for whoever is at the row and then sees what they committed. If it loses, the next look tells why.
CREATE FUNCTION processed_message_check(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval,
    p_now timestamptz,
    OUT verdict text, OUT stored_result text, OUT free_in interval
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment  timestamptz;
    message processed_messages;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    LOOP
        moment := coalesce(p_now, clock_timestamp());
        SELECT m.* INTO message
          FROM processed_messages m
         WHERE m.idempotency_key = p_key AND processed_message_taken(m, p_token, p_mark, moment);
        IF FOUND AND processed_message_covers(message, p_mark, moment) THEN
            verdict := 'DUPLICATE';
            stored_result := message.result;
            RETURN;
        ELSIF FOUND THEN
            verdict := 'IN_PROGRESS';
            free_in := message.claimed_until - moment;
            RETURN;
        END IF;

        INSERT INTO processed_messages AS m
               (idempotency_key, message_id, message_type, status, started_at, expires_at, created_at, updated_at,
                claimed_by, claimed_mark, claimed_until)
        VALUES (p_key, p_message_id, p_message_type, 'processing', moment, moment + p_ttl, moment, moment,
                p_token, p_mark, moment + p_ttl)
        ON CONFLICT (idempotency_key) DO UPDATE
           SET message_id    = EXCLUDED.message_id,
               message_type  = EXCLUDED.message_type,
               status        = EXCLUDED.status,
               started_at    = EXCLUDED.started_at,
               expires_at    = greatest(EXCLUDED.claimed_until, m.completed_until, m.failed_until),
               updated_at    = EXCLUDED.updated_at,
               claimed_by    = EXCLUDED.claimed_by,
               claimed_mark  = EXCLUDED.claimed_mark,
               claimed_until = EXCLUDED.claimed_until
         WHERE NOT processed_message_taken(m, p_token, p_mark, moment);
        IF FOUND THEN
            verdict := 'NEW';
            RETURN;
        END IF;
    END LOOP;
END
$$;

-- Completes a key unless it was taken; false if it was. True again for the claim that has completed it already. The row
-- may be gone: a claim that has run out may have been cleaned up, and still nobody else has the key.
CREATE FUNCTION processed_message_complete(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval,
    p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO processed_messages AS m
           (idempotency_key, message_id, message_type, status, started_at, completed_at, expires_at, created_at,
            updated_at, completed_by, completed_mark, completed_until, result)
    VALUES (p_key, p_message_id, p_message_type, 'completed', moment, moment, moment + p_ttl, moment,
            moment, p_token, p_mark, moment + p_ttl, p_result)
    ON CONFLICT (idempotency_key) DO UPDATE
       SET message_id      = EXCLUDED.message_id,
           message_type    = EXCLUDED.message_type,
           status          = EXCLUDED.status,
           completed_at    = EXCLUDED.completed_at,
           error           = NULL,
           expires_at      = EXCLUDED.expires_at,
           updated_at      = EXCLUDED.updated_at,
           claimed_by      = NULL,
           claimed_mark    = NULL,
           claimed_until   = NULL,
           completed_by    = EXCLUDED.completed_by,
           completed_mark  = EXCLUDED.completed_mark,
           completed_until = EXCLUDED.completed_until,
           result          = EXCLUDED.result,
           failed_until    = NULL
     WHERE NOT processed_message_taken(m, p_token, p_mark, moment);
    RETURN FOUND OR EXISTS (
        SELECT FROM processed_messages m
         WHERE m.idempotency_key = p_key AND m.completed_by = p_token AND m.completed_until > moment);
END
$$;

-- Gives a key back with the error of the run, unless it was taken; whether it was given back. A completed record that is
-- still live stays one, with the error beside it.
CREATE FUNCTION processed_message_fail(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_error text, p_ttl interval,
    p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO processed_messages AS m
           (idempotency_key, message_id, message_type, status, started_at, error, expires_at, created_at, updated_at,
            failed_until)
    VALUES (p_key, p_message_id, p_message_type, 'failed', moment, p_error, moment + p_ttl, moment, moment,
            moment + p_ttl)
    ON CONFLICT (idempotency_key) DO UPDATE
       SET message_id    = EXCLUDED.message_id,
           message_type  = EXCLUDED.message_type,
           status        = CASE WHEN m.completed_until > moment THEN 'completed' ELSE 'failed' END,
           error         = EXCLUDED.error,
           expires_at    = greatest(EXCLUDED.failed_until, m.completed_until),
           updated_at    = EXCLUDED.updated_at,
           claimed_by    = NULL,
           claimed_mark  = NULL,
           claimed_until = NULL,
           failed_until  = EXCLUDED.failed_until
     WHERE NOT processed_message_taken(m, p_token, p_mark, moment);
    RETURN FOUND;
END
$$;
