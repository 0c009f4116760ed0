-- Returns the applied changes of an entitlement before p_before, newest first, at most p_limit, each as a JSON object
-- (K8). NULL p_before: all. Refused operations are not part of the history. The status is that after the change,
-- SCHEDULED before the start.
--
-- The order is that of the versions. changed_at is the time of the change, and grows with the version also if the clock was
-- set back (W6). So that of the last row of a page is the p_before of the next one.
--
-- The function runs with the privileges of the schema owner, because the role of the functions cannot read the audit. It
-- reads entitlement_audit_history, which has no refused operations: there can be millions of them. The planner settings
-- force index scans, because a plan made while the partitions have few rows would read them completely.
CREATE OR REPLACE FUNCTION entitlement_history(
    p_user_id text, p_sku text, p_before timestamptz, p_limit integer
) RETURNS TABLE (change text, changed_at timestamptz) LANGUAGE plpgsql STABLE SECURITY DEFINER
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    IF p_limit > 1001 THEN
        RAISE EXCEPTION 'at most 1001 changes can be read at once, not %', p_limit
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    RETURN QUERY
        SELECT '{"version":' || a.version || ',"operation":"' || a.operation
               || '","status":"' || entitlement_state(a.status, a.starts_at, NULL, '0', a.changed_at)
               || '","occurred_at":"' || rfc3339(a.changed_at)
               || '","reason":' || coalesce(to_json(a.detail->>'reason')::text, 'null')
               || ',"purchase_id":' || coalesce(to_json(a.purchase_id)::text, 'null')
               || ',"caller":' || to_json(a.caller) || entitlement_fields(a, false) || '}',
               a.changed_at
          FROM entitlement_audit a
         WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku
           AND a.changed_at < coalesce(p_before, 'infinity') AND a.outcome = 'APPLIED'
         ORDER BY a.version DESC LIMIT p_limit;
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_history SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_history FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_history TO grantwire_functions;
