-- Records the start, the notice and the end of an entitlement if their time has come and they are not recorded yet
-- (K4). p_entitlement is the row as it is now; the caller holds its lock. Returns the row afterwards. p_notice is the time
-- before expires_at at which EntitlementExpiring is recorded; zero means never. p_now is the time by the clock of the
-- database; the caller has read it after it got the lock (W5).
--
-- The worker calls it, and every change calls it before it decides. So the events are the same whether or not the worker
-- ran, and no change sees an ended entitlement as ACTIVE. Only the notice is left out if the end is recorded first.
CREATE OR REPLACE FUNCTION apply_due(
    p_entitlement entitlements, p_grace interval, p_notice interval, p_trace_id text, p_now timestamptz
) RETURNS entitlements LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    current entitlements := p_entitlement;
    state text;
BEGIN
    IF NOT current.start_pending AND (current.status <> 'ACTIVE' OR current.expires_at IS NULL) THEN
        RETURN current;
    END IF;
    state := entitlement_state(current.status, current.starts_at, current.expires_at, p_grace, p_now);
    IF current.start_pending AND state <> 'SCHEDULED' THEN
        current := announce(current, 'START', p_trace_id, p_now);
    END IF;
    IF state = 'EXPIRED' THEN
        current := announce(current, 'EXPIRE', p_trace_id, p_now);
    ELSIF current.expiring_pending AND p_notice > interval '0' AND current.expires_at - p_notice <= p_now THEN
        current := announce(current, 'EXPIRING', p_trace_id, p_now);
    END IF;
    RETURN current;
END
$$;

REVOKE EXECUTE ON FUNCTION apply_due FROM PUBLIC;
GRANT EXECUTE ON FUNCTION apply_due TO grantwire_functions;
