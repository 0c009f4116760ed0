-- Marks the first open event of each aggregate ready, unless it is FAILED. Returns how many events were marked;
-- repeating the call marks none.
--
-- It never waits: if another transaction has locked one of these events, it fails with SQLSTATE 55P03 and marks none. A
-- transaction that closes events holds locks on many of them, so a wait for yet another one could be part of a circle. It
-- begins again then, and locks that event in its turn (outbox_lock_closed).
--
-- Each function that closes events calls this one in a second statement, because a new snapshot is needed to see events
-- that an enqueue committed while the first statement waited. PostgreSQL checks the conditions again if another
-- transaction has changed a row. enable_seqscan is off for the reason in outbox_enqueue.
CREATE OR REPLACE FUNCTION outbox_promote(p_aggregate_keys text[])
RETURNS integer LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    promoted integer;
BEGIN
    UPDATE outbox_events o
       SET ready = true
     WHERE o.event_id = ANY (ARRAY(
           SELECT f.event_id
             FROM unnest(p_aggregate_keys) AS k (aggregate_key)
            CROSS JOIN LATERAL (
                  SELECT x.event_id FROM outbox_events x
                   WHERE x.aggregate_key = k.aggregate_key AND x.published_at IS NULL AND x.discarded_at IS NULL
                   ORDER BY x.aggregate_version LIMIT 1) AS first
             JOIN outbox_events f ON f.event_id = first.event_id
            WHERE NOT f.ready AND f.status IN ('PENDING', 'IN_FLIGHT')
              FOR UPDATE OF f NOWAIT));
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_promote FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_promote TO grantwire_functions;
