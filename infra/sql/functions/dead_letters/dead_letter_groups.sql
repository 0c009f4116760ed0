-- The open dead letters by kind and cause, largest group first, as a JSON object (T1). Of each kind the newest p_cap
-- are counted; `capped` is true if there are more. At most p_groups groups are returned.
CREATE OR REPLACE FUNCTION dead_letter_groups(p_cap integer, p_groups integer)
RETURNS jsonb LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    WITH found AS MATERIALIZED (
        SELECT d.kind, d.cause, d.since, d.number
          FROM unnest(ARRAY['outbox', 'notification', 'nats']) AS k (kind)
         CROSS JOIN LATERAL (
               SELECT l.kind, l.cause, l.since, row_number() OVER (ORDER BY l.since DESC) AS number FROM dead_letters l
                WHERE l.kind = k.kind ORDER BY l.since DESC LIMIT p_cap + 1) AS d),
    counted AS (
        SELECT f.kind, f.cause, f.since FROM found f WHERE f.number <= p_cap),
    groups AS (
        SELECT c.kind, c.cause, count(*) AS count, min(c.since) AS first_at, max(c.since) AS last_at
          FROM counted c
         GROUP BY c.kind, c.cause
         ORDER BY count(*) DESC, c.kind, c.cause
         LIMIT p_groups)
    SELECT jsonb_build_object(
        'open', (SELECT count(*) FROM counted),
        'capped', EXISTS (SELECT FROM found f WHERE f.number > p_cap),
        'groups', coalesce((SELECT jsonb_agg(jsonb_build_object(
            'kind', g.kind, 'cause', g.cause, 'count', g.count,
            'first_at', rfc3339(g.first_at), 'last_at', rfc3339(g.last_at))
            ORDER BY g.count DESC, g.kind, g.cause) FROM groups g), '[]'))
$$;

REVOKE EXECUTE ON FUNCTION dead_letter_groups FROM PUBLIC;
GRANT EXECUTE ON FUNCTION dead_letter_groups TO grantwire_functions;
