-- Returns the recorded status of an entitlement after an event of this type; NULL for an unknown type. The check on
-- notifications.event_type (triggers.sql) and the read model use it. A test compares its list of event types with
-- grantwire.events.EVENT_TYPES and with the SQL function entitlement_event_type.
CREATE OR REPLACE FUNCTION entitlement_status_after(p_event_type text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'EntitlementGranted'  THEN 'ACTIVE'
    WHEN 'EntitlementRevoked'  THEN 'REVOKED'
    WHEN 'EntitlementExtended' THEN 'ACTIVE'
    WHEN 'EntitlementStarted'  THEN 'ACTIVE'
    WHEN 'EntitlementExpiring' THEN 'ACTIVE'
    WHEN 'EntitlementExpired'  THEN 'EXPIRED'
END;

REVOKE EXECUTE ON FUNCTION entitlement_status_after FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_status_after TO grantwire_functions;
