-- Executes a batch: calls change_entitlement for each item, in order, in one transaction (K6). p_changes is an array of
-- objects: route, key and request_hash of an item, and the fields of its change. `outcomes`, `status_codes` and `bodies`
-- have what change_entitlement returned for each item.
--
-- All keys are locked first (idempotency_lock_keys). An item whose key another transaction holds for longer than
-- p_lock_wait_ms gets REQUEST_IN_PROGRESS, and the others are executed. Then all entitlements are locked, and the events
-- that theirs will follow (outbox_lock_last), so that no item waits while it is executed (W7). Such a wait ends after
-- p_lock_wait_ms, and all waits end p_wait_ms after the start of the statement; then the statement fails with SQLSTATE
-- 55P03, and nothing was changed.
--
-- With p_atomic, the first refused item ends the batch: everything before it is rolled back, and nothing is stored, not
-- even the refusal. `refused` is then its position, and the three arrays end with this item.
--
CREATE OR REPLACE FUNCTION change_entitlements(
    p_caller text, p_ttl interval, p_lock_wait_ms integer, p_wait_ms integer, p_atomic boolean, p_grace interval,
    p_notice interval, p_changes jsonb,
    OUT outcomes text[], OUT status_codes integer[], OUT bodies text[], OUT refused integer
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    deadline timestamptz := statement_timestamp() + p_wait_ms * interval '1 millisecond';
    changes  entitlement_change[] := ARRAY(
        SELECT c FROM jsonb_populate_recordset(NULL::entitlement_change, p_changes) AS c);
    routes   text[];
    keys     text[];
    hashes   text[];
    held     integer[];
    user_ids text[];
    skus     text[];
    result   record;
BEGIN
    SELECT array_agg(i.route), array_agg(i.key), array_agg(i.request_hash) INTO routes, keys, hashes
      FROM jsonb_to_recordset(p_changes) AS i (route text, key text, request_hash text);
    held := idempotency_lock_keys(p_caller, routes, keys, hashes, p_lock_wait_ms);

    -- Only of the items that will be executed: a replay waits for nothing. LIMIT makes each search one by primary key.
    SELECT array_agg((changes[i.position]).user_id), array_agg((changes[i.position]).stock_keeping_unit)
      INTO user_ids, skus
      FROM unnest(routes, keys, hashes) WITH ORDINALITY AS i (route, key, request_hash, position)
     WHERE i.position <> ALL (held)
       AND (SELECT k.expires_at FROM idempotency_keys k
             WHERE k.caller = p_caller AND k.route = i.route AND k.idempotency_key = i.key AND k.expires_at > now()
               AND k.request_hash = i.request_hash LIMIT 1) IS NULL;
    PERFORM outbox_lock_last(
        entitlements_lock(user_ids, skus, deadline, p_lock_wait_ms), deadline, p_lock_wait_ms);

    -- The block is a subtransaction. The exception rolls it back; variables keep their values.
    BEGIN
        FOR item IN 1 .. cardinality(changes) LOOP
            IF item = ANY (held) THEN
                SELECT 'REQUEST_IN_PROGRESS' AS outcome, NULL::integer AS status_code, NULL::text AS body INTO result;
            ELSE
                SELECT c.outcome, c.status_code, c.body INTO result FROM change_entitlement(
                    routes[item], keys[item], hashes[item], p_ttl,
                    -- Zero would mean to wait without a limit.
                    least(p_lock_wait_ms,
                          greatest(1, extract(epoch FROM deadline - clock_timestamp()) * 1000))::integer,
                    p_grace, p_notice, changes[item]) c;
            END IF;
            outcomes[item]     := result.outcome;
            status_codes[item] := result.status_code;
            bodies[item]       := result.body;
            -- A key conflict and a request in progress have no status code.
            IF p_atomic AND coalesce(result.status_code, 409) >= 400 THEN
                refused := item;
                RAISE EXCEPTION 'item % of an atomic batch was refused', item USING ERRCODE = 'GW002';
            END IF;
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'GW002' THEN
        NULL;
    END;
END
$$;

REVOKE EXECUTE ON FUNCTION change_entitlements FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_entitlements TO grantwire_functions;
