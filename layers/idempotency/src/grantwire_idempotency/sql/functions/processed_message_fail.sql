-- Releases a key, stores the error of the run and returns true; returns false if the key is taken (see
-- processed_message_taken). A live completion remains completed and gets the error in addition.
CREATE OR REPLACE FUNCTION processed_message_fail(
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
           claimed_hash  = NULL,
           claimed_until = NULL,
           failed_until  = EXCLUDED.failed_until
     WHERE NOT processed_message_taken(m, p_token, p_mark, moment);
    RETURN FOUND;
END
$$;

REVOKE EXECUTE ON FUNCTION processed_message_fail FROM PUBLIC;
