-- Marks first open events ready that are neither ready nor FAILED. Returns how many were marked. Such an event is the
-- result of a bug and should be reported, but its aggregate must not stay blocked. They are locked
-- first, in the order of the aggregates (W7), because outbox_promote does not wait.
CREATE OR REPLACE FUNCTION outbox_promote_stuck() RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    keys text[];
BEGIN
    SELECT array_agg(l.aggregate_key) INTO keys
      FROM (SELECT o.aggregate_key FROM outbox_events o
             WHERE o.event_id = ANY (ARRAY(
                   SELECT first.event_id
                     FROM (SELECT DISTINCT ON (x.aggregate_key) x.event_id, x.ready, x.status
                             FROM outbox_events x
                            WHERE x.published_at IS NULL AND x.discarded_at IS NULL
                            ORDER BY x.aggregate_key, x.aggregate_version) AS first
                    WHERE NOT first.ready AND first.status <> 'FAILED'))
             ORDER BY o.aggregate_key, o.aggregate_version
               FOR UPDATE) AS l;
    RETURN outbox_promote(keys);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_promote_stuck FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_promote_stuck TO grantwire_functions;
