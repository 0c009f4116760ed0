-- Whether the connected role has the owner's privileges, also inside a function that lends them to a role that has
-- not. For the owner's own functions: it is granted to no role.
CREATE OR REPLACE FUNCTION is_schema_owner() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER') FROM pg_class c WHERE c.oid = 'entitlement_audit'::regclass
$$;

REVOKE EXECUTE ON FUNCTION is_schema_owner FROM PUBLIC;
