-- Resets the attempts of those of the events that are FAILED, so that they are published again. Returns the ids of
-- these events (Q2). The open events before them are locked first, in the order of aggregate and version (W7).
-- Otherwise a relay could close such an event while this one is still FAILED, and would not promote it. The event that
-- outbox_promote marks is one of those that are locked. With the next_retry_at of a new event, they are due whatever the
-- clock says (W6).
CREATE OR REPLACE FUNCTION outbox_redrive(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM 1 FROM outbox_events f
      JOIN outbox_events o ON o.aggregate_key = f.aggregate_key AND o.aggregate_version <= f.aggregate_version
     WHERE f.event_id = ANY (p_event_ids) AND f.status = 'FAILED'
       AND o.published_at IS NULL AND o.discarded_at IS NULL
     ORDER BY o.aggregate_key, o.aggregate_version
       FOR UPDATE OF o;
    WITH redriven AS (
        UPDATE outbox_events o
           SET status = 'PENDING', attempt_count = 0, next_retry_at = o.created_at
         WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(r.event_id), array_agg(DISTINCT r.aggregate_key ORDER BY r.aggregate_key)
      INTO ids, keys FROM redriven r;
    PERFORM outbox_promote(keys);
    RETURN QUERY SELECT unnest(ids);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_redrive FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_redrive TO grantwire_functions;
