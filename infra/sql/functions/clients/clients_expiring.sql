-- The clients that expire within p_window, or expired in the last day, as the JSON of the status (T10): how many, at most p_cap,
-- and the first five. A client that lives for a day or less was made to end and is not among them. One that ends only with
-- a client above it is not either: that one is. enable_seqscan is off, as in operations_status.
CREATE OR REPLACE FUNCTION clients_expiring(p_window interval, p_cap integer, p_now timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    now    timestamptz := coalesce(p_now, now());
BEGIN
    RETURN (
        SELECT jsonb_build_object(
                   'expiring', count(*),
                   'soonest', coalesce(jsonb_agg(jsonb_build_object(
                       'client_id', e.client_id, 'name', e.name, 'expires_at', rfc3339(e.expires_at),
                       'seconds_left', extract(epoch FROM e.expires_at - now)) ORDER BY e.expires_at, e.client_id)
                       FILTER (WHERE e.number <= 5), '[]'))
          FROM (SELECT c.client_id, c.name, c.expires_at, row_number() OVER (ORDER BY c.expires_at, c.client_id) AS number
                  FROM api_clients c
                 WHERE c.revoked_at IS NULL AND c.expires_at > now - interval '1 day'
                   AND c.expires_at < now + p_window AND c.expires_at - c.created_at > interval '1 day'
                 ORDER BY c.expires_at, c.client_id LIMIT p_cap) AS e);
END
$$;

REVOKE EXECUTE ON FUNCTION clients_expiring FROM PUBLIC;
GRANT EXECUTE ON FUNCTION clients_expiring TO grantwire_functions;
