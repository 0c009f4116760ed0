-- Takes one of p_limit places to wait for a change, for p_seconds (K9). A client has at most p_client_limit of them, so that
-- one client cannot hold all (G13). `retry_after` is 0 if the waiter has a place, otherwise the seconds after which a place
-- is free at the latest; `is_own_limit` tells whether it is the limit of the client that refuses the waiter. A call that is
-- repeated with the same p_waiter_id keeps its place. The waiter deletes its row when it has finished; if it was killed, its
-- place is free when its time ends.
--
-- The lock makes concurrent calls exact. It is held for this transaction only; p_now replaces the clock in tests.
CREATE OR REPLACE FUNCTION change_feed_wait(
    p_waiter_id uuid, p_client_id text, p_seconds double precision, p_limit integer, p_client_limit integer,
    p_now timestamptz DEFAULT NULL,
    OUT retry_after integer, OUT is_own_limit boolean
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '1s' AS $$
DECLARE
    now     timestamptz;
    places  timestamptz[];
    own     timestamptz[];
    free_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('grantwire'), hashtext('change_feed_waiters'));
    now    := coalesce(p_now, clock_timestamp());
    DELETE FROM change_feed_waiters w WHERE w.until <= now OR w.waiter_id = p_waiter_id;
    places := ARRAY(SELECT w.until FROM change_feed_waiters w ORDER BY w.until);
    own    := ARRAY(SELECT w.until FROM change_feed_waiters w WHERE w.client_id = p_client_id ORDER BY w.until);
    -- With n places taken and a limit of m <= n, one is free again after n - m + 1 of them have ended.
    free_at := greatest(
        CASE WHEN cardinality(places) >= p_limit THEN places[cardinality(places) - p_limit + 1] END,
        CASE WHEN cardinality(own) >= p_client_limit THEN own[cardinality(own) - p_client_limit + 1] END);
    is_own_limit := cardinality(own) >= p_client_limit;
    IF free_at IS NOT NULL THEN
        retry_after := greatest(1, ceil(extract(epoch FROM free_at - now)));
        RETURN;
    END IF;
    INSERT INTO change_feed_waiters (waiter_id, client_id, until)
    VALUES (p_waiter_id, p_client_id, now + make_interval(secs => p_seconds));
    retry_after := 0;
END
$$;

REVOKE EXECUTE ON FUNCTION change_feed_wait FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_feed_wait TO grantwire_functions;
