-- Returns the aggregate key of an entitlement. Escaping makes the keys of ("a/b", "c") and ("a", "b/c") different.
CREATE OR REPLACE FUNCTION entitlement_aggregate_key(p_user_id text, p_sku text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN replace(replace(p_user_id, '%', '%25'), '/', '%2F') || '/' || p_sku;

REVOKE EXECUTE ON FUNCTION entitlement_aggregate_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_aggregate_key TO grantwire_functions;
