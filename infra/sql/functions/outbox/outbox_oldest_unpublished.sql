-- Returns the time of the oldest change whose event is not published, or NULL (W3). An event that is a dead letter, or
-- waits behind one, does not count; neither does one that the inbox has, and that is published again for other readers.
--
-- The head of an aggregate is the oldest one of it, so that the index of heads is enough. Behind a head that has arrived
-- may be an event that has not. If the oldest p_cap heads have all arrived, the time of the next one counts. Every
-- statement sees the snapshot of the caller. The inbox is read in a LATERAL with OFFSET, because the planner would build a
-- hash of the whole inbox otherwise. enable_seqscan is off for the reason in operations_status.
CREATE OR REPLACE FUNCTION outbox_oldest_unpublished(p_cap integer)
RETURNS timestamptz LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    waiting timestamptz;
    behind  timestamptz;
BEGIN
    SELECT coalesce(
             (SELECT h.created_at
                FROM (SELECT o.event_id, o.created_at, o.republication FROM outbox_events o
                       WHERE o.ready ORDER BY o.created_at LIMIT p_cap) AS h
               CROSS JOIN LATERAL (
                     SELECT h.republication IS NOT NULL
                            AND EXISTS (SELECT FROM processed_events p WHERE p.event_id = h.event_id) AS has_arrived
                     OFFSET 0) AS f
               WHERE NOT has_arrived ORDER BY h.created_at LIMIT 1),
             (SELECT o.created_at FROM outbox_events o WHERE o.ready ORDER BY o.created_at OFFSET p_cap LIMIT 1))
      INTO waiting;

    SELECT min(n.created_at) INTO behind
      FROM (SELECT o.aggregate_key, o.aggregate_version FROM outbox_events o
             WHERE o.ready AND o.republication IS NOT NULL AND o.created_at < coalesce(waiting, 'infinity')
             ORDER BY o.created_at LIMIT p_cap) AS h
     CROSS JOIN LATERAL (
           SELECT x.created_at, x.status FROM outbox_events x
            CROSS JOIN LATERAL (
                  SELECT x.republication IS NOT NULL
                         AND EXISTS (SELECT FROM processed_events p WHERE p.event_id = x.event_id) AS has_arrived
                  OFFSET 0) AS f
            WHERE x.aggregate_key = h.aggregate_key AND x.aggregate_version > h.aggregate_version
              AND x.published_at IS NULL AND x.discarded_at IS NULL AND NOT has_arrived
            ORDER BY x.aggregate_version LIMIT 1) AS n
     WHERE n.status <> 'FAILED';
    RETURN least(waiting, behind);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_oldest_unpublished FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_oldest_unpublished TO grantwire_functions;
