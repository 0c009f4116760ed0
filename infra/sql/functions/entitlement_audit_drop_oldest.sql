-- Drops the oldest month of the audit that ended at least p_keep_months before the current month began (UTC), so that
-- every row is kept for that long; its name, or NULL if there is none to drop (SPEC A1). One month for each call, and
-- with a short wait for its lock: grants wait behind it. The caller tries again later. While there is a DEFAULT
-- partition a month cannot be detached without this lock.
--
-- It runs with the owner's privileges. Other roles keep at least what audit_retention says, by the database's clock.
CREATE OR REPLACE FUNCTION entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamptz DEFAULT now())
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET lock_timeout = '500ms' AS $$
DECLARE
    allowed    integer;
    keep       integer     := p_keep_months;
    moment     timestamptz := p_now;
    first_kept text;
    oldest     text;
BEGIN
    IF p_keep_months < 1 THEN
        RAISE EXCEPTION 'at least one month of the audit is kept, not %', p_keep_months
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT is_schema_owner() THEN
        SELECT r.keep_months INTO allowed FROM audit_retention r;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the owner lets nobody drop months of the audit: set ENTITLEMENT_AUDIT_RETENTION_MONTHS for migrate_database too, and invoke it'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        keep   := greatest(p_keep_months, allowed);
        moment := least(p_now, now());
    END IF;
    first_kept := to_char(date_trunc('month', moment AT TIME ZONE 'UTC') - make_interval(months => keep),
                          '"entitlement_audit_y"YYYY"m"MM');
    -- One maintainer at a time; nobody else notices this lock.
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT min(c.relname COLLATE "C") INTO oldest
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass
       AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$' AND c.relname COLLATE "C" < first_kept;
    IF oldest IS NOT NULL THEN
        EXECUTE format('DROP TABLE %I', oldest);
    END IF;
    RETURN oldest;
END
$$;

-- A function that lends the owner's privileges must find this schema's tables and no others: not a temporary one either.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_audit_drop_oldest SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_audit_drop_oldest FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_audit_drop_oldest TO grantwire_functions;
