-- Locks events that are about to be closed, in one pass in the order of aggregate and version (W7, ADR 0041), with the next
-- open event behind each of them, which outbox_promote will mark ready, and the open events before it, which were put
-- back. enable_seqscan is off for the reason in outbox_enqueue.
CREATE OR REPLACE FUNCTION outbox_lock_closed(p_event_ids uuid[])
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM outbox_events o
      WHERE o.event_id = ANY (p_event_ids || ARRAY(
            SELECT near.event_id
              FROM outbox_events c
             CROSS JOIN LATERAL (
                  (SELECT n.event_id FROM outbox_events n
                    WHERE n.aggregate_key = c.aggregate_key AND n.aggregate_version > c.aggregate_version
                      AND n.published_at IS NULL AND n.discarded_at IS NULL
                    ORDER BY n.aggregate_version LIMIT 1)
                   UNION ALL
                   SELECT b.event_id FROM outbox_events b
                    WHERE b.aggregate_key = c.aggregate_key AND b.aggregate_version < c.aggregate_version
                      AND b.published_at IS NULL AND b.discarded_at IS NULL) AS near
             WHERE c.event_id = ANY (p_event_ids)))
      ORDER BY o.aggregate_key, o.aggregate_version
        FOR UPDATE;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_lock_closed FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_lock_closed TO grantwire_functions;
