-- Completes a key and returns true, or returns false if the claim of p_token has expired or the key is taken (see
-- processed_message_taken). Returns true again for the claim that has already completed the key. The key stays completed
-- for p_ttl, and its result for p_result_ttl.
CREATE OR REPLACE FUNCTION processed_message_complete(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval,
    p_result_ttl interval, p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    UPDATE processed_messages AS m
       SET message_id      = p_message_id,
           message_type    = p_message_type,
           status          = 'completed',
           completed_at    = moment,
           error           = NULL,
           expires_at      = moment + p_ttl,
           updated_at      = moment,
           claimed_by      = NULL,
           claimed_mark    = NULL,
           claimed_hash    = NULL,
           claimed_until   = NULL,
           completed_by    = p_token,
           completed_mark  = p_mark,
           completed_hash  = m.claimed_hash,
           completed_until = moment + p_ttl,
           result          = p_result,
           result_until    = CASE WHEN p_result_ttl < p_ttl THEN moment + p_result_ttl END,
           failed_until    = NULL
     WHERE m.idempotency_key = p_key
       AND m.claimed_by = p_token
       AND m.claimed_until > moment
       AND NOT processed_message_covers(m, p_mark, moment);
    RETURN FOUND OR EXISTS (
        SELECT FROM processed_messages m
         WHERE m.idempotency_key = p_key AND m.completed_by = p_token AND m.completed_until > moment);
END
$$;

REVOKE EXECUTE ON FUNCTION processed_message_complete FROM PUBLIC;
