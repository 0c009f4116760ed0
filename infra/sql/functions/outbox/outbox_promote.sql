-- Marks the first open event of each aggregate ready, unless it is FAILED. Returns how many events were marked;
-- repeating the call marks none. PostgreSQL checks the conditions on `o` again if another transaction has changed the
-- row.
--
-- Each function that closes events calls this one in a second statement, because a new snapshot is needed to see
-- events that an enqueue committed while the first statement waited. All these functions lock rows in the order of
-- aggregate and version, so they cannot deadlock. enable_seqscan is off for the reason in outbox_enqueue.
CREATE OR REPLACE FUNCTION outbox_promote(p_aggregate_keys text[])
RETURNS integer LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    promoted integer;
BEGIN
    UPDATE outbox_events o
       SET ready = true
      FROM unnest(p_aggregate_keys) AS k (aggregate_key)
     CROSS JOIN LATERAL (
           SELECT x.event_id FROM outbox_events x
            WHERE x.aggregate_key = k.aggregate_key AND x.published_at IS NULL AND x.discarded_at IS NULL
            ORDER BY x.aggregate_version LIMIT 1) AS first
     WHERE o.event_id = first.event_id AND NOT o.ready AND o.status IN ('PENDING', 'IN_FLIGHT');
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_promote FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_promote TO grantwire_functions;
