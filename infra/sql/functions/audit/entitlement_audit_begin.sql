-- Returns the beginning of the oldest month that the audit still has (UTC). The audit has no rows of older events, unless
-- they are in the DEFAULT partition (G1, Q2).
CREATE OR REPLACE FUNCTION entitlement_audit_begin() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT coalesce(
             to_date(min(right(c.relname::text, 7) COLLATE "C"), 'YYYY"m"MM')::timestamp AT TIME ZONE 'UTC',
             '-infinity')
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$'
$$;

REVOKE EXECUTE ON FUNCTION entitlement_audit_begin FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_audit_begin TO grantwire_functions;
