-- Records an applied change of an entitlement: its audit row and its event (E6, K4). p_entitlement is the row after
-- the change. The caller holds the lock on the row, and has raised the version by one for this change.
-- p_correlation_id is NULL for time events, which no request made.
CREATE OR REPLACE FUNCTION entitlement_record_change(
    p_entitlement entitlements, p_operation text, p_operation_id uuid, p_caller text, p_reason text,
    p_purchase_id text, p_trace_id text, p_detail jsonb, p_source_address inet,
    p_correlation_id text
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    event_type text := entitlement_event_type(p_operation);
    payload    jsonb := jsonb_build_object(
        'event_id', p_operation_id, 'event_type', event_type, 'occurred_at', rfc3339(p_entitlement.updated_at),
        'user_id', p_entitlement.user_id, 'stock_keeping_unit', p_entitlement.stock_keeping_unit,
        'source', p_reason, 'source_id', p_purchase_id, 'version', p_entitlement.version);
BEGIN
    IF p_entitlement.starts_at IS NOT NULL THEN
        payload := payload || jsonb_build_object('starts_at', rfc3339(p_entitlement.starts_at));
    END IF;
    IF p_entitlement.expires_at IS NOT NULL THEN
        payload := payload || jsonb_build_object('expires_at', rfc3339(p_entitlement.expires_at));
    END IF;

    -- Before the audit, so that no transaction waits for an event while it holds up the maintenance of partitions.
    PERFORM outbox_enqueue(
        p_operation_id, event_type,
        entitlement_aggregate_key(p_entitlement.user_id, p_entitlement.stock_keeping_unit), p_entitlement.version,
        payload, p_trace_id);

    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail,
            version, status, purchase_id, source_address, starts_at, expires_at, changed_at, correlation_id)
    VALUES (p_operation_id, p_caller, p_operation, 'APPLIED', p_entitlement.user_id, p_entitlement.stock_keeping_unit,
            p_trace_id, p_detail || jsonb_build_object('reason', p_reason),
            p_entitlement.version, p_entitlement.status, p_purchase_id, p_source_address,
            p_entitlement.starts_at, p_entitlement.expires_at, p_entitlement.updated_at, p_correlation_id);
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_record_change FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_record_change TO grantwire_functions;
