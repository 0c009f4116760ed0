-- Stores the response in the transaction of the work. Only an expired row may be replaced. A live row means that the
-- lock, or the read after it, was bypassed. The function then raises SQLSTATE GW001, because an error is better than a
-- duplicate effect (I6). now() has the same value as in idempotency_begin (I4).
CREATE OR REPLACE FUNCTION idempotency_finish(
    p_caller text, p_route text, p_key text, p_request_hash text,
    p_status_code integer, p_body text, p_ttl interval
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO idempotency_keys AS k
           (caller, route, idempotency_key, request_hash, status_code, response_body, created_at, expires_at)
    VALUES (p_caller, p_route, p_key, p_request_hash, p_status_code, p_body, now(), now() + p_ttl)
    ON CONFLICT (caller, route, idempotency_key) DO UPDATE
       SET request_hash  = EXCLUDED.request_hash,
           status_code   = EXCLUDED.status_code,
           response_body = EXCLUDED.response_body,
           created_at    = EXCLUDED.created_at,
           expires_at    = EXCLUDED.expires_at
     WHERE k.expires_at <= now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'idempotency invariant broken: a live key was about to be replaced'
            USING ERRCODE = 'GW001', DETAIL = format('route %s', p_route);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION idempotency_finish FROM PUBLIC;
