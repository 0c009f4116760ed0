-- Returns the body of the response to an applied change. `starts_at` and `expires_at` are only in responses to a grant or
-- an extension, and only where they are set, so that the other responses stay the same, byte for byte (E2, E3, K3).
CREATE OR REPLACE FUNCTION entitlement_change_response(p_entitlement entitlements, p_operation text)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    e     entitlements := p_entitlement;
    times text := '';
BEGIN
    IF p_operation <> 'REVOKE' THEN
        times := coalesce(',"starts_at":"' || rfc3339(e.starts_at) || '"', '')
              || coalesce(',"expires_at":"' || rfc3339(e.expires_at) || '"', '');
    END IF;
    RETURN '{"user_id":' || to_json(e.user_id)
        || ',"stock_keeping_unit":' || to_json(e.stock_keeping_unit)
        || ',"status":"' || CASE WHEN e.start_pending THEN 'SCHEDULED' ELSE e.status END
        || '","version":' || e.version
        || ',"updated_at":"' || rfc3339(e.updated_at) || '"' || times || '}';
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_change_response FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_change_response TO grantwire_functions;
