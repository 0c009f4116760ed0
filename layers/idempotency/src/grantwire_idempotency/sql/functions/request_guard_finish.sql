-- idempotency_finish for the transaction guard of the library.
CREATE OR REPLACE FUNCTION request_guard_finish(
    p_caller text, p_route text, p_key text, p_request_hash text,
    p_status_code integer, p_body text, p_ttl interval, p_guard text
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM guarded_transaction_end(p_guard);
    PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, p_status_code, p_body, p_ttl);
END
$$;

REVOKE EXECUTE ON FUNCTION request_guard_finish FROM PUBLIC;
