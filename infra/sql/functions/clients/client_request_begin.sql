-- idempotency_begin for the routes that administrate clients (T1). It runs with the privileges of the schema owner,
-- because the role of these routes must not read the stored responses of other routes, which name users.
CREATE OR REPLACE FUNCTION client_request_begin(
    p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer,
    OUT decision text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    IF p_route NOT LIKE 'POST /v1/ops/clients%' THEN
        RAISE EXCEPTION 'route % does not administrate clients', p_route USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT b.decision, b.status_code, b.body INTO decision, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION client_request_begin SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION client_request_begin FROM PUBLIC;
GRANT EXECUTE ON FUNCTION client_request_begin TO grantwire_clients;
