-- idempotency_begin for the transaction guard of the library: if the work must be done, the transaction is protected
-- against a COMMIT inside the work.
CREATE OR REPLACE FUNCTION request_guard_begin(
    p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text,
    OUT decision text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT b.decision, b.status_code, b.body INTO decision, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;
    IF decision = 'PROCEED' THEN
        PERFORM guarded_transaction_begin(p_guard);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION request_guard_begin FROM PUBLIC;
