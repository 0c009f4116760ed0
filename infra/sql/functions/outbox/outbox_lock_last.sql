-- Locks the last open event of each aggregate, as outbox_enqueue will, in the order of the aggregates (W7, ADR 0041).
-- A transaction that enqueues events of several aggregates calls this first, and can then enqueue them in any order. It
-- must hold the locks on the aggregates, so that nothing else is enqueued for them.
--
-- Each wait ends after p_lock_wait_ms, and all of them at p_deadline, with SQLSTATE 55P03. With a NULL deadline, the
-- settings of the session limit them. enable_seqscan is off for the reason in outbox_enqueue.
CREATE OR REPLACE FUNCTION outbox_lock_last(p_aggregate_keys text[], p_deadline timestamptz, p_lock_wait_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    limited_at timestamptz := CASE WHEN p_deadline IS NULL THEN 'infinity' ELSE '-infinity' END;
    last       record;
BEGIN
    FOR last IN
        SELECT DISTINCT k.aggregate_key COLLATE "C" AS aggregate_key FROM unnest(p_aggregate_keys) AS k (aggregate_key)
         ORDER BY 1
    LOOP
        IF clock_timestamp() > limited_at + interval '10 milliseconds' THEN
            PERFORM lock_timeout_until(p_deadline, p_lock_wait_ms);
            limited_at := clock_timestamp();
        END IF;
        PERFORM FROM outbox_events o
          WHERE o.aggregate_key = last.aggregate_key AND o.published_at IS NULL AND o.discarded_at IS NULL
          ORDER BY o.aggregate_version DESC LIMIT 1
            FOR SHARE;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_lock_last FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_lock_last TO grantwire_functions;
