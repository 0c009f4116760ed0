-- Limits the next wait for a lock in this transaction to p_lock_wait_ms, and to the time until p_deadline. After the
-- deadline a lock that is free can still be taken. A wait that is too long ends with SQLSTATE 55P03.
CREATE OR REPLACE FUNCTION lock_timeout_until(p_deadline timestamptz, p_lock_wait_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- Zero would mean to wait without a limit.
    PERFORM set_config('lock_timeout', least(
        p_lock_wait_ms, greatest(1, extract(epoch FROM p_deadline - clock_timestamp()) * 1000))::integer::text, true);
END
$$;

REVOKE EXECUTE ON FUNCTION lock_timeout_until FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lock_timeout_until TO grantwire_functions;
