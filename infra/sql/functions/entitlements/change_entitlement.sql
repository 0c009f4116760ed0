-- Grants, revokes or extends an entitlement, at most once for each idempotency key (E6, E7, K5). Key, entitlement,
-- events, audit rows and stored response commit together or not at all. The caller of the key is that of the p_change.
--
-- `outcome` is APPLIED, REPLAYED, ENTITLEMENT_STATE_CONFLICT, IDEMPOTENCY_KEY_CONFLICT, REQUEST_IN_PROGRESS or
-- BAD_REQUEST. status_code and body are the response to send, byte for byte. They are NULL for IDEMPOTENCY_KEY_CONFLICT
-- and REQUEST_IN_PROGRESS. These two and BAD_REQUEST are not stored. Conflicts are returned, not raised, because an
-- exception would roll back the audit row and the stored response. Of the conflicts of one key on one day only the first
-- is audited; key_conflicts has their number (G6).
--
-- BAD_REQUEST means that the end is not in the future by the clock of the database. It is decided here, after the stored
-- response was looked up, because a repeat of a request must get its response also after that end.
CREATE OR REPLACE FUNCTION change_entitlement(
    p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer, p_grace interval,
    p_notice interval, p_change entitlement_change,
    OUT outcome text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    transition record;
    detail     jsonb := jsonb_build_object(
        'key_fingerprint', left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 12), 'reason', p_change.reason);
BEGIN
    SELECT b.decision, b.status_code, b.body INTO outcome, status_code, body
      FROM idempotency_begin(p_change.caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;

    IF outcome IN ('REPLAYED', 'REQUEST_IN_PROGRESS') THEN
        RETURN;
    END IF;

    IF outcome = 'PROCEED' THEN
        SELECT * INTO transition FROM entitlement_transition(p_change, p_grace, p_notice);
        IF transition.invalid IS NOT NULL THEN
            outcome     := 'BAD_REQUEST';
            status_code := 400;
            body        := '{"code":"BAD_REQUEST","message":' || to_json(transition.invalid) || '}';
            RETURN;
        ELSIF transition.refusal IS NULL THEN
            outcome     := 'APPLIED';
            status_code := 200;
            body        := entitlement_json(
                transition.entitlement,
                CASE WHEN (transition.entitlement).start_pending THEN 'SCHEDULED'
                     ELSE (transition.entitlement).status END,
                true, p_change.operation <> 'REVOKE');
            PERFORM record_change(p_change, transition.entitlement, detail);
        ELSE
            outcome     := 'ENTITLEMENT_STATE_CONFLICT';
            status_code := 409;
            body        := '{"code":"ENTITLEMENT_STATE_CONFLICT","message":' || to_json(transition.refusal) || '}';
            detail      := detail || jsonb_build_object('refusal', transition.refusal);
        END IF;
        PERFORM idempotency_finish(p_change.caller, p_route, p_key, p_request_hash, status_code, body, p_ttl);
        IF outcome = 'APPLIED' THEN
            RETURN;
        END IF;
    ELSIF key_conflict_count(p_change.caller, p_route, p_key, p_change.operation_id) > 1 THEN
        RETURN;
    END IF;

    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail, purchase_id,
            source_address, correlation_id)
    VALUES (p_change.operation_id, p_change.caller, p_change.operation, outcome, p_change.user_id,
            p_change.stock_keeping_unit, p_change.trace_id, detail, p_change.purchase_id, p_change.source_address,
            p_change.correlation_id);
END
$$;

REVOKE EXECUTE ON FUNCTION change_entitlement FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_entitlement TO grantwire_functions;
