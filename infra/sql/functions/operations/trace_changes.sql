-- The newest p_limit operations in the audit, newest first, as a JSON array (T2). They are selected in exactly one way:
-- by user and sku, purchase, trace id, correlation id, fingerprint of the idempotency key, or event id. The id of an event
-- that was made before version 7 UUIDs, or by a clock that was wrong by more than ten minutes, is found only with its user
-- and sku.
--
-- The function runs with the privileges of the schema owner, because the role of the functions cannot read the audit. It
-- returns at most 100 rows of one object that the caller names. The planner settings force index scans, because a plan
-- made while the partitions are empty would read them completely.
CREATE OR REPLACE FUNCTION trace_changes(
    p_user_id text, p_sku text, p_purchase_id text, p_trace_id text, p_fingerprint text, p_event_id uuid, p_limit integer,
    p_correlation_id text
) RETURNS jsonb LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off AS $$
DECLARE
    event_time timestamptz;
    found      jsonb;
BEGIN
    IF p_limit > 100 OR num_nonnulls(p_user_id, p_purchase_id, p_trace_id, p_fingerprint, p_event_id,
                                      p_correlation_id) <> 1
       OR (p_user_id IS NULL) <> (p_sku IS NULL) THEN
        RAISE EXCEPTION 'one way to select, and at most 100 rows' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF substr(p_event_id::text, 15, 1) = '7' THEN
        event_time := to_timestamp(('x' || translate(left(p_event_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0);
    END IF;
    WITH selected AS (
        (SELECT a.* FROM entitlement_audit a WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.purchase_id = p_purchase_id
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.trace_id = p_trace_id
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.correlation_id = p_correlation_id
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.detail->>'key_fingerprint' = p_fingerprint
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a
          WHERE a.operation_id = p_event_id
            AND a.occurred_at > event_time - interval '10 minutes'
            AND a.occurred_at < event_time + interval '10 minutes'
          LIMIT p_limit)),
    newest AS (SELECT s.* FROM selected s ORDER BY s.occurred_at DESC LIMIT p_limit)
    SELECT jsonb_agg(jsonb_build_object(
               'event_id', n.operation_id, 'at', rfc3339(n.occurred_at), 'caller', n.caller, 'operation', n.operation,
               'outcome', n.outcome, 'user_id', n.user_id, 'stock_keeping_unit', n.stock_keeping_unit,
               'trace_id', n.trace_id, 'correlation_id', n.correlation_id, 'detail', n.detail,
               'version', coalesce(n.version, (n.detail->>'version')::bigint), 'status', n.status,
               'purchase_id', n.purchase_id, 'source_address', host(n.source_address),
               'starts_at', rfc3339(n.starts_at), 'expires_at', rfc3339(n.expires_at))
             ORDER BY n.occurred_at DESC)
      INTO found FROM newest n;
    RETURN coalesce(found, '[]');
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION trace_changes SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION trace_changes FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trace_changes TO grantwire_functions;
