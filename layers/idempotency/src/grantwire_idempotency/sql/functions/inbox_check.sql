-- processed_message_check that waits for another transaction for p_lock_wait_ms at most, and is IN_PROGRESS then. The
-- lock_timeout of the user is the same afterwards, and the transaction can continue.
CREATE OR REPLACE FUNCTION inbox_check(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval,
    p_lock_wait_ms integer, p_now timestamptz, p_any_isolation boolean,
    OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lock_timeout_of_user constant text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', p_lock_wait_ms::text, true);
    BEGIN
        SELECT c.decision, c.stored_result, c.free_in, c.fence INTO decision, stored_result, free_in, fence
          FROM processed_message_check(p_key, p_token, p_mark, p_message_id, p_message_type, p_ttl, p_now,
                                       p_any_isolation => p_any_isolation) c;
    EXCEPTION WHEN lock_not_available THEN
        decision := 'IN_PROGRESS';
        free_in := make_interval(secs => p_lock_wait_ms / 1000.0);
    END;
    PERFORM set_config('lock_timeout', lock_timeout_of_user, true);
END
$$;

REVOKE EXECUTE ON FUNCTION inbox_check FROM PUBLIC;
