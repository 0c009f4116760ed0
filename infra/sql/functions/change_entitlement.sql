-- Grants or revokes an entitlement, at most once for each idempotency key (SPEC E6, E7). Key, entitlement, event, audit
-- row and stored response commit together or not at all.
--
-- `outcome` is APPLIED, REPLAYED, ENTITLEMENT_STATE_CONFLICT, IDEMPOTENCY_KEY_CONFLICT or REQUEST_IN_PROGRESS.
-- status_code and body are the response to send, byte for byte. They are NULL for the last two outcomes, which are not
-- stored. Conflicts are returned, not raised, because an exception would roll back the audit row and the stored
-- response. Of the conflicts of one key on one day only the first is audited; key_conflicts has their number (G6).
--
-- p_source_address has a default, so that functions of the previous release can call this one during a deployment.
DROP FUNCTION IF EXISTS change_entitlement(
    text, text, text, text, interval, integer, text, text, text, text, text, uuid, text);

CREATE OR REPLACE FUNCTION change_entitlement(
    p_caller text, p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer,
    p_status text, p_user_id text, p_sku text, p_reason text, p_purchase_id text,
    p_operation_id uuid, p_trace_id text, p_source_address inet DEFAULT NULL,
    OUT outcome text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    transition  record;
    new_version bigint;
    changed_at  timestamptz;
    event_type  text := CASE p_status WHEN 'ACTIVE' THEN 'EntitlementGranted' ELSE 'EntitlementRevoked' END;
    detail      jsonb := jsonb_build_object(
        'reason', p_reason, 'key_fingerprint', left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 12));
BEGIN
    SELECT b.decision, b.status_code, b.body INTO outcome, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;

    IF outcome IN ('REPLAYED', 'REQUEST_IN_PROGRESS') THEN
        RETURN;
    END IF;

    IF outcome = 'PROCEED' THEN
        SELECT * INTO transition FROM entitlement_transition(p_status, p_user_id, p_sku);
        IF transition.refusal IS NULL THEN
            outcome     := 'APPLIED';
            new_version := transition.new_version;
            changed_at  := transition.changed_at;
            status_code := 200;
            body        := '{"user_id":' || to_json(p_user_id)
                        || ',"stock_keeping_unit":' || to_json(p_sku)
                        || ',"status":"' || p_status
                        || '","version":' || new_version
                        || ',"updated_at":"' || rfc3339(transition.changed_at) || '"}';
        ELSE
            outcome     := 'ENTITLEMENT_STATE_CONFLICT';
            status_code := 409;
            body        := '{"code":"ENTITLEMENT_STATE_CONFLICT","message":' || to_json(transition.refusal) || '}';
            detail      := detail || jsonb_build_object('refusal', transition.refusal);
        END IF;
        PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, status_code, body, p_ttl);
    END IF;

    IF outcome = 'IDEMPOTENCY_KEY_CONFLICT'
       AND key_conflict_count(p_caller, p_route, p_key, p_operation_id) > 1 THEN
        RETURN;
    END IF;

    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail,
            version, status, purchase_id, source_address, changed_at)
    VALUES (p_operation_id, p_caller, CASE p_status WHEN 'ACTIVE' THEN 'GRANT' ELSE 'REVOKE' END,
            outcome, p_user_id, p_sku, p_trace_id, detail,
            new_version, CASE outcome WHEN 'APPLIED' THEN p_status END, p_purchase_id, p_source_address, changed_at);

    IF outcome = 'APPLIED' THEN
        PERFORM outbox_enqueue(
            p_operation_id, event_type, entitlement_aggregate_key(p_user_id, p_sku), new_version,
            jsonb_build_object(
                'event_id', p_operation_id, 'event_type', event_type, 'occurred_at', rfc3339(transition.changed_at),
                'user_id', p_user_id, 'stock_keeping_unit', p_sku,
                'source', p_reason, 'source_id', p_purchase_id, 'version', new_version),
            p_trace_id);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION change_entitlement FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_entitlement TO grantwire_functions;
