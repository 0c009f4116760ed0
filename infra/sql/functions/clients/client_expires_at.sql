-- The time at which a client expires: its own time, or that of a client above it if that is earlier (G11, ADR 0048). NULL if
-- it never expires, and if there is no such client. It is computed and not stored, so that no statement can let a client
-- outlive the one that created it.
CREATE OR REPLACE FUNCTION client_expires_at(p_client_id text) RETURNS timestamptz LANGUAGE sql STABLE STRICT AS $$
    WITH RECURSIVE above AS (
        SELECT c.created_by, c.expires_at FROM api_clients c WHERE c.client_id = p_client_id
         UNION ALL
        SELECT c.created_by, c.expires_at FROM above a JOIN api_clients c ON c.client_id = a.created_by)
    SELECT min(a.expires_at) FROM above a
$$;

REVOKE EXECUTE ON FUNCTION client_expires_at FROM PUBLIC;
GRANT EXECUTE ON FUNCTION client_expires_at TO grantwire_functions, grantwire_clients;
