-- Returns the type of the event that an operation of the audit causes; NULL for an unknown operation. This is the only
-- list of operations with their events.
CREATE OR REPLACE FUNCTION entitlement_event_type(p_operation text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_operation
    WHEN 'GRANT'    THEN 'EntitlementGranted'
    WHEN 'REVOKE'   THEN 'EntitlementRevoked'
    WHEN 'EXTEND'   THEN 'EntitlementExtended'
    WHEN 'START'    THEN 'EntitlementStarted'
    WHEN 'EXPIRING' THEN 'EntitlementExpiring'
    WHEN 'EXPIRE'   THEN 'EntitlementExpired'
END;

REVOKE EXECUTE ON FUNCTION entitlement_event_type FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_event_type TO grantwire_functions;
