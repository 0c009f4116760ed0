-- Describes one entitlement at p_now as the JSON of a check (K1, K2): whether it is allowed, its status, and why. Every
-- kind of check uses this function, so that the same entitlement has the same result in all of them. A NULL p_entitlement
-- means that it was never granted.
--
-- `body` is the complete object. `etag` identifies everything in it but checked_at and cache_until. cache_until is p_cache
-- after p_now, but never after the next change of `allowed` that is known already: the start, or the end with grace.
-- `max_age` is the time until then in whole seconds. A result with a NULL p_cache, about the past, may not be cached.
CREATE OR REPLACE FUNCTION entitlement_check(
    p_user_id text, p_sku text, p_entitlement entitlements, p_grace interval, p_cache interval, p_now timestamptz,
    OUT body text, OUT etag text, OUT max_age integer
) LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    -- Never earlier than the last change: a clock that was set back does not undo a recorded start (W6).
    state       text := entitlement_state(
        p_entitlement.status, p_entitlement.starts_at, p_entitlement.expires_at, p_grace,
        greatest(p_now, p_entitlement.updated_at));
    ends_at     timestamptz := p_entitlement.expires_at + p_grace;
    reason_code text := CASE WHEN state = 'NONE' THEN 'NOT_GRANTED'
                             WHEN state = 'ACTIVE' AND p_entitlement.expires_at <= p_now THEN 'GRACE'
                             ELSE state END;
    -- Only absolute times, so that the message is the same until the state changes. An end that was recorded before grace
    -- became longer is not moved.
    message     text := CASE reason_code
        WHEN 'ACTIVE' THEN coalesce('active until ' || rfc3339(p_entitlement.expires_at), 'active without an end')
        WHEN 'GRACE' THEN 'ended at ' || rfc3339(p_entitlement.expires_at) || ', grace until ' || rfc3339(ends_at)
        WHEN 'SCHEDULED' THEN 'starts at ' || rfc3339(p_entitlement.starts_at)
        WHEN 'EXPIRED' THEN 'ended at '
            || rfc3339(CASE p_entitlement.status WHEN 'EXPIRED' THEN least(ends_at, p_entitlement.updated_at)
                                                 ELSE ends_at END)
        WHEN 'REVOKED' THEN 'revoked at ' || rfc3339(p_entitlement.updated_at)
        ELSE 'not granted' END;
    cache_until timestamptz := CASE WHEN p_cache IS NOT NULL THEN least(
        p_now + p_cache, CASE state WHEN 'SCHEDULED' THEN p_entitlement.starts_at WHEN 'ACTIVE' THEN ends_at END) END;
BEGIN
    body := '{"user_id":' || to_json(p_user_id)
         || ',"stock_keeping_unit":' || to_json(p_sku)
         || ',"allowed":' || (state = 'ACTIVE')
         || ',"status":"' || state
         || '","reason":{"code":"' || reason_code || '","message":"' || message
         || '"},"version":' || coalesce(p_entitlement.version::text, 'null')
         || entitlement_fields(p_entitlement, true)
         || ',"updated_at":' || coalesce('"' || rfc3339(p_entitlement.updated_at) || '"', 'null');
    etag := left(encode(sha256(convert_to(body, 'UTF8')), 'hex'), 32);
    max_age := floor(extract(epoch FROM cache_until - p_now));
    body := body || ',"checked_at":"' || rfc3339(p_now)
         || '","cache_until":' || coalesce('"' || rfc3339(cache_until) || '"', 'null') || '}';
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_check FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_check TO grantwire_functions;
