-- An enqueue notifies only if a relay sleeps that listens (SPEC O9, ADR 0021).
--
-- Until now it notified unless a relay was awake, so with no relay at all, because NATS was out of reach or wake-ups were
-- switched off, every grant paid for a notification that nobody heard; and a notification makes commits wait for each
-- other. Now a relay holds the lock while it sleeps. An enqueue that can share it knows that nobody waits to be told;
-- the relay gets the lock when the enqueues that share it have committed, and looks once more after that, so that no
-- event is missed in between. A relay of the release before never holds this lock: it polls, and nothing is lost.
--
-- Planned on an empty table, the look for a sibling would read all of it, and a connection keeps such a plan until the
-- table is analysed: the first thousand grants of a new installation would each be slower than the one before.
CREATE OR REPLACE FUNCTION outbox_enqueue(
    p_event_id uuid, p_event_type text, p_aggregate_key text, p_aggregate_version bigint, p_payload jsonb,
    p_trace_id text)
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    PERFORM 1 FROM outbox_events o
      WHERE o.aggregate_key = p_aggregate_key AND o.published_at IS NULL AND o.discarded_at IS NULL
      ORDER BY o.aggregate_version DESC LIMIT 1
        FOR SHARE;
    INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, trace_id, ready)
    VALUES (p_event_id, p_event_type, p_aggregate_key, p_aggregate_version, p_payload, p_trace_id, NOT FOUND);
    -- ASCII "gwasleep".
    IF NOT pg_try_advisory_xact_lock_shared(x'677761736c656570'::bigint) THEN
        PERFORM pg_notify('outbox_events', '');
    END IF;
END
$$;

ALTER FUNCTION outbox_finalise(text, uuid[], timestamptz) SET enable_seqscan = off;
ALTER FUNCTION outbox_promote(text[]) SET enable_seqscan = off;
