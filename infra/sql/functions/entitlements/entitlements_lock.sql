-- Locks these entitlements, whether they exist or not, in the order of their lock keys (W7, ADR 0041), and returns the
-- aggregate keys of those that exist. Nothing is enqueued for an entitlement while another transaction holds it. A
-- transaction that needs several entitlements calls this before it locks an event. So two batches, or a batch and a worker,
-- never wait for each other in a circle, in whatever order their changes follow.
--
-- The advisory lock is for entitlements that do not exist yet, and row locks alone would leave two batches that grant the
-- same new ones in opposite order. A single change takes the same locks (entitlement_transition). The waits end as in
-- outbox_lock_last.
CREATE OR REPLACE FUNCTION entitlements_lock(
    p_user_ids text[], p_skus text[], p_deadline timestamptz, p_lock_wait_ms integer
) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    existing   text[] := '{}';
    limited_at timestamptz := CASE WHEN p_deadline IS NULL THEN 'infinity' ELSE '-infinity' END;
    pair       record;
BEGIN
    FOR pair IN
        SELECT DISTINCT entitlement_lock_key(p.user_id, p.sku) AS lock_key, p.user_id COLLATE "C" AS user_id,
               p.sku COLLATE "C" AS sku
          FROM unnest(p_user_ids, p_skus) AS p (user_id, sku)
         ORDER BY lock_key, user_id, sku
    LOOP
        -- The limit of a wait is renewed after each wait. Doing so for each lock would cost a tenth of the batch.
        IF clock_timestamp() > limited_at + interval '10 milliseconds' THEN
            PERFORM lock_timeout_until(p_deadline, p_lock_wait_ms);
            limited_at := clock_timestamp();
        END IF;
        PERFORM pg_advisory_xact_lock(x'6777656e'::integer, pair.lock_key);
        PERFORM FROM entitlements e
          WHERE e.user_id = pair.user_id AND e.stock_keeping_unit = pair.sku
            FOR UPDATE;
        IF FOUND THEN
            existing := existing || entitlement_aggregate_key(pair.user_id, pair.sku);
        END IF;
    END LOOP;
    RETURN existing;
END
$$;

REVOKE EXECUTE ON FUNCTION entitlements_lock FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlements_lock TO grantwire_functions;
