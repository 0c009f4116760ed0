-- Locks the entitlements of these events, before any event is locked (W7, ADR 0041). Until the end of the transaction, none
-- of their events is enqueued or put back. The settings of the session limit the waits.
CREATE OR REPLACE FUNCTION outbox_lock_entitlements(p_event_ids uuid[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM entitlements_lock(
        array_agg(o.payload->>'user_id'), array_agg(o.payload->>'stock_keeping_unit'), NULL, NULL)
       FROM outbox_events o WHERE o.event_id = ANY (p_event_ids);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_lock_entitlements FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_lock_entitlements TO grantwire_functions;
