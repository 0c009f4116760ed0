-- Completes the message that inbox_begin recorded, directly before the COMMIT.
CREATE OR REPLACE FUNCTION inbox_finish(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval,
    p_result_ttl interval, p_now timestamptz
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM guarded_transaction_end(p_token);
    IF NOT processed_message_complete(p_key, p_token, p_mark, p_message_id, p_message_type, p_result, p_ttl,
                                      p_result_ttl, p_now) THEN
        RAISE EXCEPTION 'idempotency invariant broken: the message of an inbox guard was taken' USING ERRCODE = 'GW001';
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION inbox_finish FROM PUBLIC;
