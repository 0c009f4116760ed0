-- Publishes those of the events again that are FAILED, or lost and TOO_OLD, and returns the ids of these events (Q2).
--
-- The attempts of a FAILED event are reset. The entitlements are locked first, because an earlier event could be put back
-- meanwhile (outbox_put_back), and then the open events before it, in the order of aggregate and version (W7). Otherwise a relay could close such an event while this one is still FAILED, and would not promote it. The
-- event that outbox_promote marks is one of those that are locked. With the next_retry_at of a new event, it is due
-- whatever the clock says (W6).
--
-- A lost event is put back at once, although it could take effect twice: an operator decided so.
CREATE OR REPLACE FUNCTION outbox_redrive(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lost record;
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM outbox_lock_entitlements(p_event_ids);
    SELECT array_agg(o.event_id) AS ids, array_agg(o.stream_sequence) AS sequences
      INTO lost
      FROM outbox_unconfirmed u
      JOIN outbox_events o ON o.event_id = u.event_id
     WHERE u.event_id = ANY (p_event_ids) AND u.state = 'TOO_OLD' AND o.status = 'PUBLISHED';
    PERFORM FROM outbox_events o
      WHERE o.event_id = ANY (lost.ids || ARRAY(
            SELECT x.event_id FROM outbox_events e
              JOIN outbox_events x ON x.aggregate_key = e.aggregate_key
             WHERE e.event_id = ANY (p_event_ids) AND x.published_at IS NULL AND x.discarded_at IS NULL
               AND ((e.status = 'FAILED' AND x.aggregate_version <= e.aggregate_version)
                    OR e.event_id = ANY (lost.ids))))
      ORDER BY o.aggregate_key, o.aggregate_version
        FOR UPDATE;
    WITH redriven AS (
        UPDATE outbox_events o
           SET status = 'PENDING', attempt_count = 0, next_retry_at = o.created_at
         WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(r.event_id), array_agg(DISTINCT r.aggregate_key ORDER BY r.aggregate_key)
      INTO ids, keys FROM redriven r;
    PERFORM outbox_promote(keys);
    IF lost.ids IS NOT NULL THEN
        PERFORM outbox_put_back(
            lost.ids, lost.sequences, 'LOST', NULL, false, '-infinity', interval '0', NULL, p_now);
    END IF;
    RETURN QUERY SELECT unnest(ids || ARRAY(
        SELECT o.event_id FROM outbox_events o WHERE o.event_id = ANY (lost.ids) AND o.status = 'PENDING'));
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_redrive FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_redrive TO grantwire_functions;
