-- Drops the oldest monthly partition of the audit that ended at least p_keep_months before the current month began
-- (UTC). Returns its name, or NULL if there is no such partition (A1).
--
-- Each call drops one partition. Dropping needs a lock that grants wait for, so the function waits for it only
-- briefly; the caller tries again later. PostgreSQL cannot detach a partition without this lock while a DEFAULT
-- partition exists.
--
-- The position of the last dropped change is recorded, so that the change feed refuses a cursor before it (K9).
--
-- The function runs with the privileges of the schema owner. For other roles, audit_retention sets the minimum number
-- of months to keep, and p_now cannot be later than the time of the database.
CREATE OR REPLACE FUNCTION entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamptz DEFAULT now())
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET lock_timeout = '500ms' AS $$
DECLARE
    allowed    integer;
    keep       integer     := p_keep_months;
    now        timestamptz := p_now;
    first_kept text;
    oldest     text;
    last       record;
    identity   text        := installation_identity();
BEGIN
    IF p_keep_months < 1 THEN
        RAISE EXCEPTION 'p_keep_months must be at least 1, not %', p_keep_months
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT is_schema_owner() THEN
        SELECT r.keep_months INTO allowed FROM audit_retention r;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the schema owner does not allow dropping audit partitions: set ENTITLEMENT_AUDIT_RETENTION_MONTHS for migrate_database too, and invoke it'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        keep   := greatest(p_keep_months, allowed);
        now := least(p_now, now());
    END IF;
    first_kept := to_char(date_trunc('month', now AT TIME ZONE 'UTC') - make_interval(months => keep),
                          '"entitlement_audit_y"YYYY"m"MM');
    -- Only one session maintains partitions at a time. This lock blocks no reads or writes.
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT min(c.relname COLLATE "C") INTO oldest
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass
       AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$' AND c.relname COLLATE "C" < first_kept;
    IF oldest IS NOT NULL THEN
        -- A higher transaction id is not of this cluster: it came with a dump.
        EXECUTE format(
            $last$SELECT transaction_id, occurred_at, operation_id FROM %I
                   WHERE outcome = 'APPLIED' AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
                   ORDER BY transaction_id DESC, occurred_at DESC, operation_id DESC LIMIT 1$last$, oldest) INTO last;
        EXECUTE format('DROP TABLE %I', oldest);
        UPDATE installation i
           SET dropped_in = identity, dropped_transaction_id = last.transaction_id,
               dropped_occurred_at = last.occurred_at, dropped_operation_id = last.operation_id
         WHERE last.transaction_id IS NOT NULL
           AND (i.dropped_in IS DISTINCT FROM identity
                OR (i.dropped_transaction_id, i.dropped_occurred_at, i.dropped_operation_id)
                   < (last.transaction_id, last.occurred_at, last.operation_id));
    END IF;
    RETURN oldest;
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_audit_drop_oldest SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_audit_drop_oldest FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_audit_drop_oldest TO grantwire_functions;
