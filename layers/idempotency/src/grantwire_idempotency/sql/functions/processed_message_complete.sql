-- Completes a key and returns true, or returns false if the key is taken (see processed_message_taken). Returns true
-- again for the claim that has already completed the key. The row may be missing, because an expired claim may have been
-- deleted; the claim can still be completed then. The key stays completed for p_ttl, and its result for p_result_ttl.
DROP FUNCTION IF EXISTS processed_message_complete(text, text, bigint, text, text, text, interval, timestamptz);
CREATE OR REPLACE FUNCTION processed_message_complete(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval,
    p_result_ttl interval, p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO processed_messages AS m
           (idempotency_key, message_id, message_type, status, started_at, completed_at, expires_at, created_at,
            updated_at, completed_by, completed_mark, completed_until, result, result_until)
    VALUES (p_key, p_message_id, p_message_type, 'completed', moment, moment, moment + p_ttl, moment,
            moment, p_token, p_mark, moment + p_ttl, p_result, CASE WHEN p_result_ttl < p_ttl THEN moment + p_result_ttl END)
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
           result_until    = EXCLUDED.result_until,
           failed_until    = NULL
     WHERE NOT processed_message_taken(m, p_token, p_mark, moment);
    RETURN FOUND OR EXISTS (
        SELECT FROM processed_messages m
         WHERE m.idempotency_key = p_key AND m.completed_by = p_token AND m.completed_until > moment);
END
$$;

REVOKE EXECUTE ON FUNCTION processed_message_complete FROM PUBLIC;
