-- Locks the keys of a batch, and returns the positions of those that other transactions hold (I5, I8, K6). All
-- batches take their locks in the same order, that of the lock key, so two batches never wait for each other.
--
-- The deadline is for the whole batch, not for each key. A key that is not free at the deadline is not waited for. A
-- request that has a stored response needs no lock, because idempotency_begin replays it before the lock.
CREATE OR REPLACE FUNCTION idempotency_lock_keys(
    p_caller text, p_routes text[], p_keys text[], p_request_hashes text[], p_lock_wait_ms integer
) RETURNS integer[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    deadline  timestamptz := clock_timestamp() + p_lock_wait_ms * interval '1 millisecond';
    held      integer[] := '{}';
    held_key  bigint;
    remaining integer;
    item      record;
BEGIN
    FOR item IN
        -- First 8 bytes of SHA-256(key) as a signed 64-bit integer, as in idempotency_begin.
        SELECT k.position::integer AS position,
               ('x' || left(encode(sha256(convert_to(k.key, 'UTF8')), 'hex'), 16))::bit(64)::bigint AS lock_key
          FROM unnest(p_keys) WITH ORDINALITY AS k (key, position)
         ORDER BY lock_key, position
    LOOP
        -- The first item with a key decides for all items with this key.
        IF item.lock_key IS DISTINCT FROM held_key THEN
            CONTINUE WHEN pg_try_advisory_xact_lock(item.lock_key);
        END IF;

        PERFORM FROM idempotency_keys k
          WHERE k.caller = p_caller AND k.route = p_routes[item.position] AND k.idempotency_key = p_keys[item.position]
            AND k.expires_at > now() AND k.request_hash = p_request_hashes[item.position];
        CONTINUE WHEN FOUND;

        remaining := ceil(extract(epoch FROM deadline - clock_timestamp()) * 1000);
        IF item.lock_key IS DISTINCT FROM held_key AND remaining > 0 THEN
            PERFORM set_config('lock_timeout', remaining::text, true);
            BEGIN
                PERFORM pg_advisory_xact_lock(item.lock_key);
                CONTINUE;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END IF;
        held_key := item.lock_key;
        held     := held || item.position;
    END LOOP;
    RETURN held;
END
$$;

REVOKE EXECUTE ON FUNCTION idempotency_lock_keys FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idempotency_lock_keys TO grantwire_functions;
