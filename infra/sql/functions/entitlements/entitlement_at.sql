-- Returns the recorded state of an entitlement at the past time p_at (K8), or a `refusal` for the caller. All other
-- results are NULL if the entitlement was not granted yet. The refusal names the limit: the time now, the beginning of the
-- audit, or the first change of this entitlement that the audit still has.
--
-- The last change until p_at decides, in the order of the versions. If it is the current state, it is read from
-- `entitlements`. Otherwise it is the last applied change in the audit. The order of occurred_at can be another one if the
-- clock was set back; changed_at always grows with the version.
--
-- After that, the last change can lie ahead of the clock. It then counts from as long before now as it lies ahead, so that
-- a check as of a moment ago agrees with the check now (W6).
--
-- The function runs with the privileges of the schema owner, because the role of the functions cannot read the audit. It
-- reads the applied changes of one entitlement, from the newest one on, in the index entitlement_audit_history. The planner
-- settings force index scans, because a plan made while the partitions have few rows would read them completely.
CREATE OR REPLACE FUNCTION entitlement_at(
    p_user_id text, p_sku text, p_at timestamptz, p_now timestamptz,
    OUT refusal text, OUT entitlement entitlements
) LANGUAGE plpgsql STABLE SECURITY DEFINER
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    audit_begin timestamptz := entitlement_audit_begin();
    last_change jsonb;
    first_kept  record;
BEGIN
    IF p_at > p_now THEN
        refusal := 'at must not be later than now, ' || rfc3339(p_now);
    ELSIF p_at < audit_begin THEN
        refusal := 'at must not be earlier than ' || rfc3339(audit_begin) || ', the beginning of the recorded history';
    END IF;
    IF refusal IS NOT NULL THEN
        RETURN;
    END IF;

    SELECT e.* INTO entitlement
      FROM entitlements e WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku;
    IF NOT FOUND OR entitlement.updated_at <= p_at OR entitlement.updated_at - p_now >= p_now - p_at THEN
        RETURN;
    END IF;

    -- The audit has the columns of the entitlement by the same names, but for one.
    SELECT to_jsonb(a) || jsonb_build_object('updated_at', a.changed_at) INTO last_change
      FROM entitlement_audit a
     WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku AND a.outcome = 'APPLIED'
       AND a.changed_at <= p_at
     ORDER BY a.version DESC LIMIT 1;
    entitlement := jsonb_populate_record(NULL::entitlements, last_change);
    IF last_change IS NOT NULL THEN
        RETURN;
    END IF;

    SELECT a.version, a.changed_at INTO first_kept
      FROM entitlement_audit a
     WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku AND a.outcome = 'APPLIED'
     ORDER BY a.version LIMIT 1;
    IF first_kept.version IS DISTINCT FROM 1 THEN
        refusal := 'at must not be earlier than ' || rfc3339(coalesce(first_kept.changed_at, p_now))
                || ', the first change in the recorded history of this entitlement';
    END IF;
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_at SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_at FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_at TO grantwire_functions;
