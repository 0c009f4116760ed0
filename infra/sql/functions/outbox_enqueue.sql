-- Adds an event behind the earlier ones of its aggregate (SPEC O1, O8, O9). The caller holds the lock on the
-- aggregate's row, which gave it p_aggregate_version. Call it late in the transaction: its locks last to the end.
--
-- The share lock on the last open sibling closes a race: without it a relay could close that sibling, not yet see this
-- row, and leave it waiting for ever. Planned on an empty table, this look-up would read all of it, and a connection
-- keeps such a plan until the table is analysed; hence enable_seqscan.
--
-- It notifies only if a relay sleeps (ADR 0021): a sleeping relay holds the advisory lock. An enqueue that can share
-- the lock knows that no relay waits for it; the relay gets the lock when the enqueues that share it have committed,
-- and polls once more after that, so that no event is missed in between. A NOTIFY in every transaction would make all
-- commits wait for each other.
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
