-- Returns the status of an entitlement after an event of this type; NULL for an unknown type. This is the only list of
-- event types in SQL. The check on notifications.event_type (after_functions.sql) and the read model use it. A test
-- compares it with grantwire.events.EVENT_TYPES.
CREATE OR REPLACE FUNCTION entitlement_status_after(p_event_type text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'EntitlementGranted' THEN 'ACTIVE'
    WHEN 'EntitlementRevoked' THEN 'REVOKED'
END;

REVOKE EXECUTE ON FUNCTION entitlement_status_after FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_status_after TO grantwire_functions;
