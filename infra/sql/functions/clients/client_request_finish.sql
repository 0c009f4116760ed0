-- idempotency_finish for the routes that administrate clients, with the privileges of the schema owner: see
-- client_request_begin.
CREATE OR REPLACE FUNCTION client_request_finish(
    p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval
) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    IF p_route NOT LIKE 'POST /v1/ops/clients%' OR octet_length(p_body) > 4096 THEN
        RAISE EXCEPTION 'route % does not administrate clients', p_route USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, p_status_code, p_body, p_ttl);
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION client_request_finish SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION client_request_finish FROM PUBLIC;
GRANT EXECUTE ON FUNCTION client_request_finish TO grantwire_clients;
