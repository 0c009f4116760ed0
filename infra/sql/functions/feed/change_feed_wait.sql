-- Takes one of p_limit places to wait for a change, for p_seconds (K9). Returns 0 if the waiter has a place, otherwise
-- the seconds after which a place is free at the latest. A call that is repeated with the same p_waiter_id keeps its
-- place. The waiter deletes its row when it has finished; if it was killed, its place is free when its time ends.
--
-- The lock makes concurrent calls exact. It is held for this transaction only; p_now replaces the clock in tests.
CREATE OR REPLACE FUNCTION change_feed_wait(
    p_waiter_id uuid, p_seconds double precision, p_limit integer, p_now timestamptz DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql VOLATILE SET lock_timeout = '1s' AS $$
DECLARE
    moment timestamptz;
    places timestamptz[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('grantwire'), hashtext('change_feed_waiters'));
    moment := coalesce(p_now, clock_timestamp());
    DELETE FROM change_feed_waiters w WHERE w.until <= moment OR w.waiter_id = p_waiter_id;
    places := ARRAY(SELECT w.until FROM change_feed_waiters w ORDER BY w.until);
    IF cardinality(places) >= p_limit THEN
        RETURN greatest(1, ceil(extract(epoch FROM places[cardinality(places) - p_limit + 1] - moment)));
    END IF;
    INSERT INTO change_feed_waiters VALUES (p_waiter_id, moment + make_interval(secs => p_seconds));
    RETURN 0;
END
$$;

REVOKE EXECUTE ON FUNCTION change_feed_wait FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_feed_wait TO grantwire_functions;
