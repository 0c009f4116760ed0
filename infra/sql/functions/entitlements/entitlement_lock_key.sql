-- Returns the key of the advisory lock of an entitlement, whether it exists or not (W7). A change takes it as
-- pg_advisory_xact_lock(x'6777656e'::integer, key), ASCII "gwen". Two integers are a separate key space from the locks of
-- idempotency keys, which are one bigint. Entitlements that share a lock wait for each other; nothing else follows from it.
CREATE OR REPLACE FUNCTION entitlement_lock_key(p_user_id text, p_sku text)
RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtext(p_user_id || '/' || p_sku);

REVOKE EXECUTE ON FUNCTION entitlement_lock_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_lock_key TO grantwire_functions;
