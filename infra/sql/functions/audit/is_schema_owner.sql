-- Returns whether the role that logged in is the schema owner or a member of it. SECURITY DEFINER functions use it to
-- recognise other roles. No other role may execute it.
CREATE OR REPLACE FUNCTION is_schema_owner() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER') FROM pg_class c WHERE c.oid = 'entitlement_audit'::regclass
$$;

REVOKE EXECUTE ON FUNCTION is_schema_owner FROM PUBLIC;
