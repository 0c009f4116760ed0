-- Records the start, the notice and the end of an entitlement if their time has come and they are not recorded yet
-- (K4). p_entitlement is the row as it is now; the caller holds its lock. Returns the row afterwards. p_notice is the time
-- before expires_at at which EntitlementExpiring is recorded; zero means never. p_now is the time by the clock of the
-- database; the caller has read it after it got the lock (W5).
--
-- The worker calls it, and every change calls it before it decides. So the events are the same whether or not the worker
-- ran, and no change sees an ended entitlement as ACTIVE. Only the notice is left out if the end is recorded first.
CREATE OR REPLACE FUNCTION entitlement_record_due(
    p_entitlement entitlements, p_grace interval, p_notice interval, p_trace_id text, p_now timestamptz
) RETURNS entitlements LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known entitlements := p_entitlement;
    state text;
BEGIN
    IF NOT known.start_pending AND (known.status <> 'ACTIVE' OR known.expires_at IS NULL) THEN
        RETURN known;
    END IF;
    state := entitlement_state(known.status, known.starts_at, known.expires_at, p_grace, p_now);
    IF known.start_pending AND state <> 'SCHEDULED' THEN
        known := entitlement_record_time(known, 'START', p_trace_id, p_now);
    END IF;
    IF state = 'EXPIRED' THEN
        known := entitlement_record_time(known, 'EXPIRE', p_trace_id, p_now);
    ELSIF known.expiring_pending AND p_notice > interval '0' AND known.expires_at - p_notice <= p_now THEN
        known := entitlement_record_time(known, 'EXPIRING', p_trace_id, p_now);
    END IF;
    RETURN known;
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_record_due FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_record_due TO grantwire_functions;
