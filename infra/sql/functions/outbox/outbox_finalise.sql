-- Marks events PUBLISHED that the stream has acknowledged, if this claim still holds them, and promotes the events
-- behind them. Returns how many were marked (O2). p_sequences has the number of each message in the stream, in the
-- order of the ids. enable_seqscan is off for the reason in outbox_enqueue.
--
-- If an event to promote is locked, the subtransaction is rolled back, which releases its locks, and the events are locked
-- again together with those behind them. So a wait is always in the order of aggregate and version (W7). A further round
-- is needed only if an event appeared behind another one meanwhile, which happens at most once for each aggregate.
CREATE OR REPLACE FUNCTION outbox_finalise(
    p_claim text, p_event_ids uuid[], p_now timestamptz, p_sequences bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    with_successors boolean := false;
    promoting       boolean;
    closed          integer;
    keys            text[];
BEGIN
    LOOP
        promoting := false;
        BEGIN
            IF with_successors THEN
                PERFORM outbox_lock_closed(p_event_ids);
            END IF;
            WITH locked AS MATERIALIZED (
                SELECT o.event_id FROM outbox_events o
                 WHERE o.event_id = ANY (p_event_ids) AND o.locked_by = p_claim AND o.status = 'IN_FLIGHT'
                 ORDER BY o.aggregate_key, o.aggregate_version
                   FOR UPDATE),
            published AS (
                UPDATE outbox_events o
                   SET status = 'PUBLISHED', published_at = coalesce(p_now, now()), ready = false,
                       stream_sequence = a.stream_sequence, locked_by = NULL, locked_at = NULL, lease_until = NULL
                  FROM unnest(p_event_ids, p_sequences) AS a (event_id, stream_sequence)
                 WHERE o.event_id = ANY (ARRAY(SELECT l.event_id FROM locked l)) AND a.event_id = o.event_id
                RETURNING o.aggregate_key)
            SELECT count(*), array_agg(DISTINCT p.aggregate_key) INTO closed, keys FROM published p;
            promoting := true;
            PERFORM outbox_promote(keys);
            RETURN closed;
        EXCEPTION WHEN lock_not_available THEN
            IF NOT promoting THEN
                RAISE;
            END IF;
            with_successors := true;
        END;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_finalise FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_finalise TO grantwire_functions;
