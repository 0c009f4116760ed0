-- Discards those of the events that are FAILED, and promotes the events behind them. Returns the ids of the discarded
-- events (Q3).
CREATE OR REPLACE FUNCTION outbox_discard(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM 1 FROM outbox_events o
     WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
     ORDER BY o.aggregate_key, o.aggregate_version
       FOR UPDATE;
    WITH discarded AS (
        UPDATE outbox_events o
           SET status = 'DISCARDED', discarded_at = coalesce(p_now, now())
         WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(d.event_id), array_agg(DISTINCT d.aggregate_key ORDER BY d.aggregate_key)
      INTO ids, keys FROM discarded d;
    PERFORM outbox_promote(keys);
    RETURN QUERY SELECT unnest(ids);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_discard FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_discard TO grantwire_functions;
