-- Records a time event, START, EXPIRING or EXPIRE, of an entitlement: the next version, an audit row and an event
-- (K4). p_entitlement is the row as it is now; the caller holds its lock. Returns the row after the change.
-- Its updated_at is p_now, but always after that of the last change, also if the clock was set back (E1, W6).
--
-- The event carries the purchase that set the times. Its caller in the audit is `grantwire`.
CREATE OR REPLACE FUNCTION announce(
    p_entitlement entitlements, p_operation text, p_trace_id text, p_now timestamptz)
RETURNS entitlements LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    change  entitlement_change;
    changed entitlements;
BEGIN
    UPDATE entitlements e
       SET status           = CASE p_operation WHEN 'EXPIRE' THEN 'EXPIRED' ELSE e.status END,
           version          = e.version + 1,
           updated_at       = greatest(p_now, e.updated_at + interval '1 microsecond'),
           start_pending    = e.start_pending AND p_operation = 'EXPIRING',
           expiring_pending = e.expiring_pending AND p_operation = 'START'
     WHERE e.user_id = p_entitlement.user_id AND e.stock_keeping_unit = p_entitlement.stock_keeping_unit
    RETURNING e.* INTO changed;

    change.operation    := p_operation;
    change.operation_id := gen_random_uuid();
    change.caller       := 'grantwire';
    change.reason       := 'schedule';
    change.purchase_id  := changed.purchase_id;
    change.trace_id     := p_trace_id;
    PERFORM record_change(change, changed, '{"reason": "schedule"}');
    RETURN changed;
END
$$;

REVOKE EXECUTE ON FUNCTION announce FROM PUBLIC;
GRANT EXECUTE ON FUNCTION announce TO grantwire_functions;
