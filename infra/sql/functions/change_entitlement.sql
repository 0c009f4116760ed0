-- Grants or revokes, at most once for each key (SPEC E6, E7): key, entitlement, event, audit row and stored response
-- commit together or not at all. `outcome` is APPLIED, REPLAYED or the code of a refusal: ENTITLEMENT_STATE_CONFLICT,
-- IDEMPOTENCY_KEY_CONFLICT or REQUEST_IN_PROGRESS. status_code and body are the response to send, byte for byte; the
-- last two have none, because they are not stored. A refusal is returned, not raised, so that its audit row and its
-- stored response stay.
CREATE OR REPLACE FUNCTION change_entitlement(
    p_caller text, p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer,
    p_status text, p_user_id text, p_sku text, p_reason text, p_purchase_id text,
    p_operation_id uuid, p_trace_id text,
    OUT outcome text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    right_now record;
    event     text := CASE p_status WHEN 'ACTIVE' THEN 'EntitlementGranted' ELSE 'EntitlementRevoked' END;
    detail    jsonb := jsonb_build_object(
        'reason', p_reason, 'purchase_id', p_purchase_id,
        'key_fingerprint', left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 12));
BEGIN
    SELECT b.verdict, b.status_code, b.body INTO outcome, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;

    IF outcome IN ('REPLAYED', 'REQUEST_IN_PROGRESS') THEN
        RETURN;
    END IF;

    IF outcome = 'PROCEED' THEN
        SELECT * INTO right_now FROM entitlement_transition(p_status, p_user_id, p_sku);
        IF right_now.refusal IS NULL THEN
            outcome     := 'APPLIED';
            status_code := 200;
            body        := '{"user_id":' || to_json(p_user_id)
                        || ',"stock_keeping_unit":' || to_json(p_sku)
                        || ',"status":"' || p_status
                        || '","version":' || right_now.new_version
                        || ',"updated_at":"' || rfc3339(right_now.changed_at) || '"}';
            detail      := detail || jsonb_build_object('version', right_now.new_version);
        ELSE
            outcome     := 'ENTITLEMENT_STATE_CONFLICT';
            status_code := 409;
            body        := '{"code":"ENTITLEMENT_STATE_CONFLICT","message":' || to_json(right_now.refusal) || '}';
            detail      := detail || jsonb_build_object('refusal', right_now.refusal);
        END IF;
        PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, status_code, body, p_ttl);
    END IF;

    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
    VALUES (p_operation_id, p_caller, CASE p_status WHEN 'ACTIVE' THEN 'GRANT' ELSE 'REVOKE' END,
            outcome, p_user_id, p_sku, p_trace_id, detail);

    IF outcome = 'APPLIED' THEN
        PERFORM outbox_enqueue(
            p_operation_id, event, entitlement_aggregate_key(p_user_id, p_sku), right_now.new_version,
            jsonb_build_object(
                'event_id', p_operation_id, 'event_type', event, 'occurred_at', rfc3339(right_now.changed_at),
                'user_id', p_user_id, 'stock_keeping_unit', p_sku,
                'source', p_reason, 'source_id', p_purchase_id, 'version', right_now.new_version),
            p_trace_id);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION change_entitlement FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_entitlement TO grantwire_functions;
