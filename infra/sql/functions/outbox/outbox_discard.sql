-- Discards those of the events that are FAILED, and promotes the events behind them. Returns the ids of the discarded
-- events (Q3). It takes its locks as outbox_finalise does.
CREATE OR REPLACE FUNCTION outbox_discard(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    with_successors boolean := false;
    promoting       boolean;
    ids             uuid[];
    keys            text[];
BEGIN
    LOOP
        promoting := false;
        BEGIN
            IF with_successors THEN
                PERFORM outbox_lock_closed(p_event_ids);
            END IF;
            PERFORM 1 FROM outbox_events o
             WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
             ORDER BY o.aggregate_key, o.aggregate_version
               FOR UPDATE;
            WITH discarded AS (
                UPDATE outbox_events o
                   SET status = 'DISCARDED', discarded_at = coalesce(p_now, now())
                 WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
                RETURNING o.event_id, o.aggregate_key)
            SELECT array_agg(d.event_id), array_agg(DISTINCT d.aggregate_key) INTO ids, keys FROM discarded d;
            promoting := true;
            PERFORM outbox_promote(keys);
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF NOT promoting THEN
                RAISE;
            END IF;
            with_successors := true;
        END;
    END LOOP;
    RETURN QUERY SELECT unnest(ids);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_discard FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_discard TO grantwire_functions;
