-- Records a time event, START, EXPIRING or EXPIRE, of an entitlement: the next version, an audit row and an event
-- (K4). p_entitlement is the row as it is now; the caller holds its lock. Returns the row after the change.
-- Its updated_at is p_now, but always after that of the last change, also if the clock was set back (E1, W6).
--
-- The event carries the purchase that set the times. Its caller in the audit is `grantwire`.
CREATE OR REPLACE FUNCTION entitlement_record_time(
    p_entitlement entitlements, p_operation text, p_trace_id text, p_now timestamptz)
RETURNS entitlements LANGUAGE plpgsql VOLATILE AS $$
DECLARE
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

    PERFORM entitlement_record_change(
        changed, p_operation, gen_random_uuid(), 'grantwire', 'schedule', changed.purchase_id, p_trace_id, '{}', NULL, NULL);
    RETURN changed;
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_record_time FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_record_time TO grantwire_functions;
