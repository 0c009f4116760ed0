-- Discards those of the events that are FAILED, or lost and TOO_OLD, and promotes the events behind them. Returns the ids
-- of the discarded events (Q3). It locks the entitlements first, as outbox_redrive does, so that no event is enqueued or put
-- back meanwhile. Nothing waits behind a lost event. The list of unconfirmed events is not waited for: what stays in it is
-- removed by the next check.
CREATE OR REPLACE FUNCTION outbox_discard(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lost uuid[];
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM outbox_lock_entitlements(p_event_ids);
    lost := ARRAY(SELECT u.event_id FROM outbox_unconfirmed u
                   WHERE u.event_id = ANY (p_event_ids) AND u.state = 'TOO_OLD');
    PERFORM outbox_lock_closed(p_event_ids);
    WITH discarded AS (
        UPDATE outbox_events o
           SET status = 'DISCARDED', discarded_at = coalesce(p_now, now()), published_at = NULL
         WHERE o.event_id = ANY (p_event_ids)
           AND (o.status = 'FAILED' OR (o.status = 'PUBLISHED' AND o.event_id = ANY (lost)))
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(d.event_id), array_agg(DISTINCT d.aggregate_key) INTO ids, keys FROM discarded d;
    PERFORM outbox_promote(keys);
    DELETE FROM outbox_unconfirmed u
     WHERE u.event_id = ANY (ARRAY(
           SELECT x.event_id FROM outbox_unconfirmed x
            WHERE x.event_id = ANY (ids) AND x.event_id = ANY (lost)
              FOR UPDATE SKIP LOCKED));
    RETURN QUERY SELECT unnest(ids);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_discard FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_discard TO grantwire_functions;
