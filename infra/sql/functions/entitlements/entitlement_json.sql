-- Renders an entitlement as the JSON object of the responses to a change, of the list of a user and of the snapshot.
-- p_status is the status to show. The function is one expression, so that PostgreSQL inlines it into the statement.
CREATE OR REPLACE FUNCTION entitlement_json(
    p_entitlement entitlements, p_status text, p_with_user boolean, p_with_fields boolean
) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE WHEN p_with_user THEN '{"user_id":' || to_json(p_entitlement.user_id) || ',' ELSE '{' END
    || '"stock_keeping_unit":' || to_json(p_entitlement.stock_keeping_unit)
    || ',"status":"' || p_status || '","version":' || p_entitlement.version
    || ',"updated_at":"' || rfc3339(p_entitlement.updated_at) || '"'
    || CASE WHEN p_with_fields THEN entitlement_fields(p_entitlement, false) ELSE '' END || '}'
$$;

REVOKE EXECUTE ON FUNCTION entitlement_json FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_json TO grantwire_functions;
