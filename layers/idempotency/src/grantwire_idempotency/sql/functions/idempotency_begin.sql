-- Decides how to handle a request with an idempotency key (I1-I8). The decision is one of:
--   PROCEED                   the key is free, and this transaction has locked it: do the work, call idempotency_finish
--   REPLAYED                  the same request has a stored response: status_code and body
--   IDEMPOTENCY_KEY_CONFLICT  the key was used for another request
--   REQUEST_IN_PROGRESS       another transaction has held the key for longer than p_lock_wait_ms
-- Only idempotency_begin and idempotency_finish decide about a key. The first SELECT serves the common replay without
-- a lock, because a live row with an equal hash cannot change (I6). Every other decision is made by a statement that
-- starts after the lock is held. Under READ COMMITTED this statement sees what the previous holder committed. A
-- stricter isolation level uses an older snapshot. It is refused, except with p_any_isolation: a key whose response was
-- stored since the snapshot is PROCEED then, and idempotency_finish raises SQLSTATE 40001 (serialization_failure).
CREATE OR REPLACE FUNCTION idempotency_begin(
    p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer,
    p_any_isolation boolean DEFAULT false,
    OUT decision text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    stored_hash text;
BEGIN
    IF NOT p_any_isolation AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;

    SELECT k.status_code, k.response_body INTO status_code, body
      FROM idempotency_keys k
     WHERE k.caller = p_caller AND k.route = p_route AND k.idempotency_key = p_key
       AND k.expires_at > now() AND k.request_hash = p_request_hash;
    IF FOUND THEN
        decision := 'REPLAYED';
        RETURN;
    END IF;

    -- Also bounds the waits for row locks in the rest of the transaction.
    PERFORM set_config('lock_timeout', p_lock_wait_ms::text, true);
    BEGIN
        -- First 8 bytes of SHA-256(key) as a signed 64-bit integer (I5).
        PERFORM pg_advisory_xact_lock(
            ('x' || left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 16))::bit(64)::bigint);
    EXCEPTION WHEN lock_not_available THEN
        decision := 'REQUEST_IN_PROGRESS';
        RETURN;
    END;

    SELECT k.request_hash, k.status_code, k.response_body INTO stored_hash, status_code, body
      FROM idempotency_keys k
     WHERE k.caller = p_caller AND k.route = p_route AND k.idempotency_key = p_key
       AND k.expires_at > now();
    IF NOT FOUND THEN
        decision := 'PROCEED';
    ELSIF stored_hash = p_request_hash THEN
        decision := 'REPLAYED';
    ELSE
        decision := 'IDEMPOTENCY_KEY_CONFLICT';
        status_code := NULL;
        body := NULL;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION idempotency_begin FROM PUBLIC;
