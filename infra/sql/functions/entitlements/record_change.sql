-- Records an applied change of an entitlement: its audit row and its event (E6, K4). p_entitlement is the row after
-- the change, p_detail what else the audit keeps, with the reason. The caller holds the lock on the row, and has raised the version by one for this change.
CREATE OR REPLACE FUNCTION record_change(p_change entitlement_change, p_entitlement entitlements, p_detail jsonb)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    event_type text := entitlement_event_type(p_change.operation);
    fields     text := entitlement_fields(p_entitlement, false);
    payload    jsonb := jsonb_build_object(
        'event_id', p_change.operation_id, 'event_type', event_type, 'occurred_at', rfc3339(p_entitlement.updated_at),
        'user_id', p_entitlement.user_id, 'stock_keeping_unit', p_entitlement.stock_keeping_unit,
        'source', p_change.reason, 'source_id', p_change.purchase_id, 'version', p_entitlement.version);
BEGIN
    IF fields <> '' THEN
        payload := payload || ('{' || substr(fields, 2) || '}')::jsonb;
    END IF;

    -- Before the audit, so that no transaction waits for an event while it holds up the maintenance of partitions.
    PERFORM outbox_enqueue(
        p_change.operation_id, event_type,
        entitlement_aggregate_key(p_entitlement.user_id, p_entitlement.stock_keeping_unit), p_entitlement.version,
        payload, p_change.trace_id);

    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail,
            version, status, purchase_id, source_address, starts_at, expires_at, changed_at, correlation_id)
    VALUES (p_change.operation_id, p_change.caller, p_change.operation, 'APPLIED', p_entitlement.user_id,
            p_entitlement.stock_keeping_unit, p_change.trace_id, p_detail,
            p_entitlement.version, p_entitlement.status, p_change.purchase_id, p_change.source_address,
            p_entitlement.starts_at, p_entitlement.expires_at, p_entitlement.updated_at, p_change.correlation_id);
END
$$;

REVOKE EXECUTE ON FUNCTION record_change FROM PUBLIC;
GRANT EXECUTE ON FUNCTION record_change TO grantwire_functions;
