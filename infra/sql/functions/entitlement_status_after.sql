-- The status that an event leaves its entitlement in; NULL for an unknown event type. This is the list of event types in
-- SQL: the check on notifications.event_type (after_functions.sql) and the read model ask it, and a test compares it with
-- grantwire.events.EVENT_TYPES.
CREATE OR REPLACE FUNCTION entitlement_status_after(p_event_type text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'EntitlementGranted' THEN 'ACTIVE'
    WHEN 'EntitlementRevoked' THEN 'REVOKED'
END;

REVOKE EXECUTE ON FUNCTION entitlement_status_after FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_status_after TO grantwire_functions;
