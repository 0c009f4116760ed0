-- Records starts, notices and ends whose time has come, of at most p_limit entitlements of each kind, and returns how
-- many events of each were recorded (K4). All zero means that nothing is due, or that other transactions hold what
-- is due.
--
-- Several workers can run at once. SKIP LOCKED leaves a row to the transaction that holds it: another worker, which
-- records it, or a change, which records what is due before it decides. apply_due checks the row again,
-- after it was locked. All rows are locked first, then the events that theirs will follow, in the order of the aggregates
-- (W7): the order of the times is another one.
--
-- With p_isolate, an entitlement whose events PostgreSQL refuses does not hold back the others: it is counted as failed,
-- and `error` has the reason of the last one. Then p_limit must be at most 20, because each entitlement takes a
-- subtransaction, and a transaction with more than 64 of them slows down all others. Those that failed stay the first ones
-- that are due. So the next call leaves out as many: p_skip and `failed_of` have a number for starts, ends and notices.
--
-- enable_seqscan is off because a plan made while the table is empty would use a sequential scan.
CREATE OR REPLACE FUNCTION expire_due(
    p_limit integer, p_grace interval, p_notice interval, p_trace_id text, p_isolate boolean,
    p_skip integer[],
    OUT started integer, OUT expiring integer, OUT expired integer, OUT failed integer, OUT error text,
    OUT failed_of integer[]
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    listed_at timestamptz := clock_timestamp();
    locked    record;
    due       record;
    before    entitlements;
    after     entitlements;
BEGIN
    started := 0;
    expiring := 0;
    expired := 0;
    failed := 0;
    failed_of := '{0,0,0}';
    -- What is due in two ways is listed twice, and nothing is left to record the second time.
    WITH listed AS MATERIALIZED (
        (SELECT 1 AS kind, user_id, stock_keeping_unit FROM entitlements
          WHERE start_pending AND starts_at <= listed_at ORDER BY starts_at LIMIT p_limit OFFSET p_skip[1])
        UNION ALL
        (SELECT 2, user_id, stock_keeping_unit FROM entitlements
          WHERE status = 'ACTIVE' AND expires_at <= listed_at - p_grace ORDER BY expires_at
          LIMIT p_limit OFFSET p_skip[2])
        UNION ALL
        (SELECT 3, user_id, stock_keeping_unit FROM entitlements
          WHERE expiring_pending AND expires_at <= listed_at + p_notice AND p_notice > interval '0'
          ORDER BY expires_at LIMIT p_limit OFFSET p_skip[3]))
    SELECT array_agg(l.kind) AS kinds, array_agg(l.user_id) AS user_ids, array_agg(l.stock_keeping_unit) AS skus,
           array_agg(entitlement_aggregate_key(l.user_id, l.stock_keeping_unit)) AS aggregates
      INTO locked
      FROM listed l
     CROSS JOIN LATERAL (
           SELECT FROM entitlements e
            WHERE e.user_id = l.user_id AND e.stock_keeping_unit = l.stock_keeping_unit
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS row;
    PERFORM outbox_lock_last(locked.aggregates, NULL, NULL);

    FOR due IN
        SELECT d.kind, d.user_id, d.sku FROM unnest(locked.kinds, locked.user_ids, locked.skus) AS d (kind, user_id, sku)
    LOOP
        SELECT e.* INTO before FROM entitlements e
         WHERE e.user_id = due.user_id AND e.stock_keeping_unit = due.sku;
        IF p_isolate THEN
            BEGIN
                after := apply_due(before, p_grace, p_notice, p_trace_id, clock_timestamp());
            EXCEPTION WHEN OTHERS THEN
                failed := failed + 1;
                failed_of[due.kind] := failed_of[due.kind] + 1;
                error := SQLERRM || ' (' || SQLSTATE || ')';
                CONTINUE;
            END;
        ELSE
            after := apply_due(before, p_grace, p_notice, p_trace_id, clock_timestamp());
        END IF;
        started  := started + (before.start_pending AND NOT after.start_pending)::integer;
        expiring := expiring + (before.expiring_pending AND NOT after.expiring_pending
                                AND after.status = 'ACTIVE')::integer;
        expired  := expired + (before.status = 'ACTIVE' AND after.status = 'EXPIRED')::integer;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION expire_due FROM PUBLIC;
GRANT EXECUTE ON FUNCTION expire_due TO grantwire_functions;
