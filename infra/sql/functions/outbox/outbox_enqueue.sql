-- Adds an event to the outbox, after the earlier events of its aggregate (O1, O8, O9). The caller must hold the
-- lock on the row of the aggregate that assigned p_aggregate_version. Call the function late in the transaction,
-- because its locks last until the end of the transaction.
--
-- The share lock on the last open event of the aggregate prevents a race. Without it, a relay could close that event
-- before it sees the new one, and the new event would never become ready.
--
-- enable_seqscan is off because a plan made while the table is empty would use a sequential scan. A connection keeps
-- such a plan until the table is analysed.
--
-- The function notifies only if a relay sleeps (ADR 0021). A sleeping relay holds the advisory lock exclusively. If
-- the enqueue can share the lock, no relay sleeps. A relay gets the lock only after all enqueues that share it have
-- committed, and then polls once more, so it misses no event. A NOTIFY in every transaction would serialise all
-- commits.
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

REVOKE EXECUTE ON FUNCTION outbox_enqueue FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_enqueue TO grantwire_functions;
