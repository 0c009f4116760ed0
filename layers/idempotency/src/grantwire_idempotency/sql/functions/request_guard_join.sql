-- request_guard_begin in a transaction of the caller, who does the work, calls request_guard_finish and commits (C28).
-- A COMMIT before request_guard_finish fails. READ_ONLY is one more decision: the transaction can store no response.
-- Any isolation level is allowed; see idempotency_begin. The lock_timeout of the user is the same afterwards.
CREATE OR REPLACE FUNCTION request_guard_join(
    p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text,
    OUT decision text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lock_timeout_of_user constant text := current_setting('lock_timeout');
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        decision := 'READ_ONLY';
        RETURN;
    END IF;
    SELECT b.decision, b.status_code, b.body INTO decision, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms, true) b;
    PERFORM set_config('lock_timeout', lock_timeout_of_user, true);
    IF decision = 'PROCEED' THEN
        PERFORM guarded_transaction_begin(p_guard);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION request_guard_join FROM PUBLIC;
