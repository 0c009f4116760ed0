CREATE TYPE public.entitlement_change AS (
	operation_id uuid,
	operation text,
	user_id text,
	stock_keeping_unit text,
	reason text,
	purchase_id text,
	starts_at timestamp with time zone,
	expires_at timestamp with time zone,
	caller text,
	trace_id text,
	source_address inet,
	correlation_id text
);
CREATE TABLE public.entitlements (
    user_id text NOT NULL COLLATE pg_catalog."C",
    stock_keeping_unit text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL,
    version bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    starts_at timestamp with time zone,
    expires_at timestamp with time zone,
    purchase_id text,
    start_pending boolean DEFAULT false NOT NULL,
    expiring_pending boolean DEFAULT false NOT NULL,
    CONSTRAINT entitlements_expired CHECK (((status <> 'EXPIRED'::text) OR (expires_at IS NOT NULL))),
    CONSTRAINT entitlements_pending CHECK ((((NOT start_pending) OR ((status = 'ACTIVE'::text) AND (starts_at IS NOT NULL) AND (purchase_id IS NOT NULL))) AND ((NOT expiring_pending) OR ((status = 'ACTIVE'::text) AND (expires_at IS NOT NULL) AND (purchase_id IS NOT NULL))))),
    CONSTRAINT entitlements_purchase_id_length CHECK (((char_length(purchase_id) >= 1) AND (char_length(purchase_id) <= 128))),
    CONSTRAINT entitlements_sku_length CHECK (((char_length(stock_keeping_unit) >= 1) AND (char_length(stock_keeping_unit) <= 128))),
    CONSTRAINT entitlements_status CHECK ((status = ANY (ARRAY['ACTIVE'::text, 'REVOKED'::text, 'EXPIRED'::text]))),
    CONSTRAINT entitlements_times CHECK ((expires_at > starts_at)),
    CONSTRAINT entitlements_user_id_length CHECK (((char_length(user_id) >= 1) AND (char_length(user_id) <= 128))),
    CONSTRAINT entitlements_version CHECK ((version >= 1))
)
WITH (fillfactor='80');
COMMENT ON COLUMN public.entitlements.status IS 'The recorded status. Readers use the SQL function entitlement_state.';
CREATE FUNCTION public.announce(p_entitlement public.entitlements, p_operation text, p_trace_id text, p_now timestamp with time zone) RETURNS public.entitlements
    LANGUAGE plpgsql
    AS $$
DECLARE
    change  entitlement_change;
    changed entitlements;
BEGIN
    UPDATE entitlements e
       SET status           = CASE p_operation WHEN 'EXPIRE' THEN 'EXPIRED' ELSE e.status END,
           version          = e.version + 1,
           updated_at       = greatest(p_now, e.updated_at + interval '1 microsecond'),
           start_pending    = e.start_pending AND p_operation = 'EXPIRING',
           expiring_pending = e.expiring_pending AND p_operation = 'START'
     WHERE e.user_id = p_entitlement.user_id AND e.stock_keeping_unit = p_entitlement.stock_keeping_unit
    RETURNING e.* INTO changed;
    change.operation    := p_operation;
    change.operation_id := gen_random_uuid();
    change.caller       := 'grantwire';
    change.reason       := 'schedule';
    change.purchase_id  := changed.purchase_id;
    change.trace_id     := p_trace_id;
    PERFORM record_change(change, changed, '{"reason": "schedule"}');
    RETURN changed;
END
$$;
CREATE FUNCTION public.api_clients_keep_revocation() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'client % was revoked at %, and a revocation cannot be changed', OLD.client_id, OLD.revoked_at
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE FUNCTION public.apply_due(p_entitlement public.entitlements, p_grace interval, p_notice interval, p_trace_id text, p_now timestamp with time zone) RETURNS public.entitlements
    LANGUAGE plpgsql
    AS $$
DECLARE
    current entitlements := p_entitlement;
    state text;
BEGIN
    IF NOT current.start_pending AND (current.status <> 'ACTIVE' OR current.expires_at IS NULL) THEN
        RETURN current;
    END IF;
    state := entitlement_state(current.status, current.starts_at, current.expires_at, p_grace, p_now);
    IF current.start_pending AND state <> 'SCHEDULED' THEN
        current := announce(current, 'START', p_trace_id, p_now);
    END IF;
    IF state = 'EXPIRED' THEN
        current := announce(current, 'EXPIRE', p_trace_id, p_now);
    ELSIF current.expiring_pending AND p_notice > interval '0' AND current.expires_at - p_notice <= p_now THEN
        current := announce(current, 'EXPIRING', p_trace_id, p_now);
    END IF;
    RETURN current;
END
$$;
CREATE FUNCTION public.change_entitlement(p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer, p_grace interval, p_notice interval, p_change public.entitlement_change, OUT outcome text, OUT status_code integer, OUT body text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    transition record;
    detail     jsonb := jsonb_build_object(
        'key_fingerprint', left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 12), 'reason', p_change.reason);
BEGIN
    SELECT b.decision, b.status_code, b.body INTO outcome, status_code, body
      FROM idempotency_begin(p_change.caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;
    IF outcome IN ('REPLAYED', 'REQUEST_IN_PROGRESS') THEN
        RETURN;
    END IF;
    IF outcome = 'PROCEED' THEN
        SELECT * INTO transition FROM entitlement_transition(p_change, p_grace, p_notice);
        IF transition.invalid IS NOT NULL THEN
            outcome     := 'BAD_REQUEST';
            status_code := 400;
            body        := '{"code":"BAD_REQUEST","message":' || to_json(transition.invalid) || '}';
            RETURN;
        ELSIF transition.refusal IS NULL THEN
            outcome     := 'APPLIED';
            status_code := 200;
            body        := entitlement_json(
                transition.entitlement,
                CASE WHEN (transition.entitlement).start_pending THEN 'SCHEDULED'
                     ELSE (transition.entitlement).status END,
                true, p_change.operation <> 'REVOKE');
            PERFORM record_change(p_change, transition.entitlement, detail);
        ELSE
            outcome     := 'ENTITLEMENT_STATE_CONFLICT';
            status_code := 409;
            body        := '{"code":"ENTITLEMENT_STATE_CONFLICT","message":' || to_json(transition.refusal) || '}';
            detail      := detail || jsonb_build_object('refusal', transition.refusal);
        END IF;
        PERFORM idempotency_finish(p_change.caller, p_route, p_key, p_request_hash, status_code, body, p_ttl);
        IF outcome = 'APPLIED' THEN
            RETURN;
        END IF;
    ELSIF key_conflict_count(p_change.caller, p_route, p_key, p_change.operation_id) > 1 THEN
        RETURN;
    END IF;
    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail, purchase_id,
            source_address, correlation_id)
    VALUES (p_change.operation_id, p_change.caller, p_change.operation, outcome, p_change.user_id,
            p_change.stock_keeping_unit, p_change.trace_id, detail, p_change.purchase_id, p_change.source_address,
            p_change.correlation_id);
END
$$;
CREATE FUNCTION public.change_entitlements(p_caller text, p_ttl interval, p_lock_wait_ms integer, p_wait_ms integer, p_atomic boolean, p_grace interval, p_notice interval, p_changes jsonb, OUT outcomes text[], OUT status_codes integer[], OUT bodies text[], OUT refused integer) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION public.change_feed_lag() RETURNS double precision
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
BEGIN
    RETURN (
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(held.occurred_at)), 0))
          FROM (SELECT a.occurred_at
                  FROM entitlement_audit a
                 WHERE a.outcome = 'APPLIED'
                   AND a.transaction_id >= pg_snapshot_xmin(pg_current_snapshot())
                   AND a.transaction_id < pg_snapshot_xmax(pg_current_snapshot())
                 ORDER BY a.transaction_id, a.occurred_at, a.operation_id
                 LIMIT 1000) AS held);
END
$$;
CREATE FUNCTION public.change_feed_page(p_installation text, p_transaction_id xid8, p_occurred_at timestamp with time zone, p_operation_id uuid, p_limit integer, OUT outcome text, OUT identity text, OUT changes text, OUT has_more boolean, OUT next_transaction_id xid8, OUT next_occurred_at timestamp with time zone, OUT next_operation_id uuid, OUT visible_before xid8) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    first_unused xid8;
    incomplete   uuid;
BEGIN
    IF p_limit NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a page has between 1 and 1000 changes, not %', p_limit
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH page AS (
      SELECT a.*, entitlement_fields(a, false) AS fields,
             row_number() OVER (ORDER BY a.transaction_id, a.occurred_at, a.operation_id) AS number
        FROM entitlement_audit a
       WHERE a.outcome = 'APPLIED'
         AND (a.transaction_id, a.occurred_at, a.operation_id)
             > (coalesce(p_transaction_id, '0'), coalesce(p_occurred_at, '-infinity'),
                coalesce(p_operation_id, '00000000-0000-0000-0000-000000000000'))
         AND a.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
       ORDER BY a.transaction_id, a.occurred_at, a.operation_id
       LIMIT p_limit + 1),
    items AS (
      SELECT p.transaction_id, p.occurred_at, p.operation_id, p.number,
             '{"event_id":"' || p.operation_id || '","event_type":"' || entitlement_event_type(p.operation)
             || '","user_id":' || to_json(p.user_id) || ',"stock_keeping_unit":' || to_json(p.stock_keeping_unit)
             || ',"status":"' || entitlement_state(p.status, p.starts_at, NULL, '0', p.changed_at)
             || '","version":' || p.version
             || ',"occurred_at":"' || rfc3339(p.changed_at)
             || '","reason":' || coalesce(to_json(p.detail->>'reason')::text, 'null')
             || ',"purchase_id":' || coalesce(to_json(p.purchase_id)::text, 'null')
             || ',"caller":' || to_json(p.caller) || p.fields || '}' AS item
        FROM page p)
    SELECT coalesce(string_agg(i.item, ',' ORDER BY i.number) FILTER (WHERE i.number <= p_limit), ''),
           count(*) > p_limit,
           (array_agg(i.transaction_id) FILTER (WHERE i.number = p_limit))[1],
           (array_agg(i.occurred_at) FILTER (WHERE i.number = p_limit))[1],
           (array_agg(i.operation_id) FILTER (WHERE i.number = p_limit))[1],
           pg_snapshot_xmin(pg_current_snapshot()), pg_snapshot_xmax(pg_current_snapshot()),
           (array_agg(i.operation_id) FILTER (WHERE i.item IS NULL))[1]
      INTO changes, has_more, next_transaction_id, next_occurred_at, next_operation_id, visible_before, first_unused,
           incomplete
      FROM items i;
    IF incomplete IS NOT NULL THEN
        RAISE EXCEPTION 'the audit row of change % has an unknown operation', incomplete;
    END IF;
    identity := installation_identity();
    outcome  := CASE
        WHEN p_installation <> identity OR p_transaction_id >= first_unused THEN 'REPLACED'
        WHEN p_installation = identity AND EXISTS (
            SELECT FROM installation i
             WHERE i.dropped_in = identity
               AND (i.dropped_transaction_id, i.dropped_occurred_at, i.dropped_operation_id)
                   > (p_transaction_id, p_occurred_at, p_operation_id)) THEN 'DROPPED'
        ELSE 'OK' END;
END
$$;
CREATE FUNCTION public.change_feed_wait(p_waiter_id uuid, p_client_id text, p_seconds double precision, p_limit integer, p_client_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT retry_after integer, OUT is_own_limit boolean) RETURNS record
    LANGUAGE plpgsql
    SET lock_timeout TO '1s'
    AS $$
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
CREATE FUNCTION public.client_expires_at(p_client_id text) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    next_id  text := p_client_id;
    earliest timestamptz;
BEGIN
    WHILE next_id IS NOT NULL LOOP
        SELECT c.created_by, least(earliest, c.expires_at) INTO next_id, earliest
          FROM api_clients c WHERE c.client_id = next_id;
    END LOOP;
    RETURN earliest;
END
$$;
CREATE FUNCTION public.client_request_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, OUT decision text, OUT status_code integer, OUT body text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
BEGIN
    IF p_route NOT LIKE 'POST /v1/ops/clients%' THEN
        RAISE EXCEPTION 'route % does not administrate clients', p_route USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT b.decision, b.status_code, b.body INTO decision, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;
END
$$;
CREATE FUNCTION public.client_request_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
BEGIN
    IF p_route NOT LIKE 'POST /v1/ops/clients%' OR octet_length(p_body) > 4096 THEN
        RAISE EXCEPTION 'route % does not administrate clients', p_route USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, p_status_code, p_body, p_ttl);
END
$$;
CREATE FUNCTION public.client_tokens_take(p_client_id text, p_rate integer, p_burst integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone, p_count integer DEFAULT 1, OUT granted integer, OUT retry_after double precision, OUT burst integer) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    rate      integer;
    bucket    client_buckets;
    now       timestamptz;
    available double precision;
BEGIN
    SELECT c.rate_limit, c.burst_limit INTO rate, burst FROM api_clients c WHERE c.client_id = p_client_id;
    rate  := coalesce(rate, p_rate);
    burst := coalesce(burst, p_burst);
    LOOP
        SELECT * INTO bucket FROM client_buckets b WHERE b.client_id = p_client_id FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO client_buckets (client_id, tokens, filled_at)
        VALUES (p_client_id, burst, coalesce(p_now, clock_timestamp()))
            ON CONFLICT (client_id) DO NOTHING;
    END LOOP;
    -- After the lock, so that time does not run backwards between two concurrent calls.
    now         := coalesce(p_now, clock_timestamp());
    available   := least(burst, bucket.tokens + rate * greatest(0, extract(epoch FROM now - bucket.filled_at)));
    granted     := CASE WHEN available >= p_count THEN greatest(p_count, floor(available / 10)) ELSE 0 END;
    retry_after := CASE WHEN granted = 0 THEN (greatest(p_count, burst / 10.0) - available) / rate ELSE 0 END;
    UPDATE client_buckets SET tokens = available - granted, filled_at = now WHERE client_id = p_client_id;
END
$$;
CREATE FUNCTION public.clients_expiring(p_window interval, p_cap integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    now    timestamptz := coalesce(p_now, now());
BEGIN
    RETURN (
        SELECT jsonb_build_object(
                   'expiring', count(*),
                   'soonest', coalesce(jsonb_agg(jsonb_build_object(
                       'client_id', e.client_id, 'name', e.name, 'expires_at', rfc3339(e.expires_at),
                       'seconds_left', extract(epoch FROM e.expires_at - now)) ORDER BY e.expires_at, e.client_id)
                       FILTER (WHERE e.number <= 5), '[]'))
          FROM (SELECT c.client_id, c.name, c.expires_at, row_number() OVER (ORDER BY c.expires_at, c.client_id) AS number
                  FROM api_clients c
                 WHERE c.revoked_at IS NULL AND c.expires_at > now - interval '1 day'
                   AND c.expires_at < now + p_window AND c.expires_at - c.created_at > interval '1 day'
                 ORDER BY c.expires_at, c.client_id LIMIT p_cap) AS e);
END
$$;
CREATE FUNCTION public.dead_letter_cause(p_error text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN "left"(regexp_replace(regexp_replace(COALESCE(NULLIF(p_error, ''::text), 'no error was recorded'::text), '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}'::text, '<id>'::text, 'g'::text), '\d+\.\d+|\d{4,}'::text, '<n>'::text, 'g'::text), 200);
CREATE FUNCTION public.dead_letter_find(p_kind text, p_id uuid) RETURNS TABLE(dead_letter jsonb, payload bytea)
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    AS $$
    WITH found AS (
        SELECT d.kind, d.dead_letter_id, 'OPEN' AS state, d.cause, d.error, d.event_id, d.event_type, d.user_id,
               d.stock_keeping_unit, d.since, d.event_time, NULL::timestamptz AS closed_at, d.has_copy
          FROM dead_letters d WHERE d.kind = p_kind AND d.dead_letter_id = p_id
        UNION ALL
        SELECT c.kind, c.dead_letter_id, c.state, c.cause, c.error, c.event_id, c.event_type, c.user_id,
               c.stock_keeping_unit, c.since, c.event_time, c.closed_at, c.has_copy
          FROM closed_dead_letters c WHERE c.kind = p_kind AND c.dead_letter_id = p_id),
    stored AS (
        SELECT o.attempt_count AS attempts, o.trace_id, o.payload AS decoded, NULL::bytea AS payload, 'json' AS format,
               NULL::jsonb AS headers, NULL::text AS subject, NULL::text AS stream, NULL::bigint AS stream_sequence
          FROM outbox_events o WHERE p_kind = 'outbox' AND o.event_id = p_id
        UNION ALL
        SELECT n.attempt_count, n.trace_id, n.payload, NULL, 'json', NULL, NULL, NULL, NULL
          FROM notification_dlq n WHERE p_kind = 'notification' AND n.notification_id = p_id
        UNION ALL
        SELECT m.deliveries, m.headers->>'trace_id', NULL, m.payload, 'none', m.headers, m.subject, m.stream, m.stream_seq
          FROM notification_nats_dlq m WHERE p_kind = 'nats' AND m.dead_letter_id = p_id)
    SELECT jsonb_build_object(
               'kind', f.kind, 'dead_letter_id', f.dead_letter_id, 'state', f.state, 'cause', f.cause, 'error', f.error,
               'event_id', f.event_id, 'event_type', f.event_type, 'user_id', f.user_id,
               'stock_keeping_unit', f.stock_keeping_unit, 'since', rfc3339(f.since),
               'event_time', rfc3339(f.event_time), 'closed_at', rfc3339(f.closed_at), 'has_copy', f.has_copy,
               'attempts', s.attempts, 'trace_id', s.trace_id,
               'message', jsonb_build_object(
                   'format', s.format, 'decoded', s.decoded, 'headers', s.headers, 'subject', s.subject,
                   'stream', s.stream, 'stream_sequence', s.stream_sequence),
               'actions', (SELECT coalesce(jsonb_agg(a.action - 'dead_letter_ids' ORDER BY a.position), '[]')
                             FROM jsonb_array_elements(operator_actions_find(ARRAY[p_id], 100))
                                  WITH ORDINALITY AS a (action, position))),
           s.payload
      FROM found f, stored s
$$;
CREATE FUNCTION public.dead_letter_groups(p_cap integer, p_groups integer) RETURNS jsonb
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    AS $$
    WITH found AS MATERIALIZED (
        SELECT d.kind, d.cause, d.since, d.number
          FROM unnest(ARRAY['outbox', 'notification', 'nats']) AS k (kind)
         CROSS JOIN LATERAL (
               SELECT l.kind, l.cause, l.since, row_number() OVER (ORDER BY l.since DESC) AS number FROM dead_letters l
                WHERE l.kind = k.kind ORDER BY l.since DESC LIMIT p_cap + 1) AS d),
    counted AS (
        SELECT f.kind, f.cause, f.since FROM found f WHERE f.number <= p_cap),
    groups AS (
        SELECT c.kind, c.cause, count(*) AS count, min(c.since) AS first_at, max(c.since) AS last_at
          FROM counted c
         GROUP BY c.kind, c.cause
         ORDER BY count(*) DESC, c.kind, c.cause
         LIMIT p_groups)
    SELECT jsonb_build_object(
        'open', (SELECT count(*) FROM counted),
        'capped', EXISTS (SELECT FROM found f WHERE f.number > p_cap),
        'groups', coalesce((SELECT jsonb_agg(jsonb_build_object(
            'kind', g.kind, 'cause', g.cause, 'count', g.count,
            'first_at', rfc3339(g.first_at), 'last_at', rfc3339(g.last_at))
            ORDER BY g.count DESC, g.kind, g.cause) FROM groups g), '[]'))
$$;
CREATE FUNCTION public.entitlement_aggregate_key(p_user_id text, p_sku text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((replace(replace(p_user_id, '%'::text, '%25'::text), '/'::text, '%2F'::text) || '/'::text) || p_sku);
CREATE FUNCTION public.entitlement_at(p_user_id text, p_sku text, p_at timestamp with time zone, p_now timestamp with time zone, OUT refusal text, OUT entitlement public.entitlements) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    audit_begin timestamptz := entitlement_audit_begin();
    last_change jsonb;
    first_kept  record;
BEGIN
    IF p_at > p_now THEN
        refusal := 'at must not be later than now, ' || rfc3339(p_now);
    ELSIF p_at < audit_begin THEN
        refusal := 'at must not be earlier than ' || rfc3339(audit_begin) || ', the beginning of the recorded history';
    END IF;
    IF refusal IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT e.* INTO entitlement
      FROM entitlements e WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku;
    IF NOT FOUND OR entitlement.updated_at <= p_at OR entitlement.updated_at - p_now >= p_now - p_at THEN
        RETURN;
    END IF;
    -- The audit has the columns of the entitlement by the same names, but for one.
    SELECT to_jsonb(a) || jsonb_build_object('updated_at', a.changed_at) INTO last_change
      FROM entitlement_audit a
     WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku AND a.outcome = 'APPLIED'
       AND a.changed_at <= p_at
     ORDER BY a.version DESC LIMIT 1;
    entitlement := jsonb_populate_record(NULL::entitlements, last_change);
    IF last_change IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT a.version, a.changed_at INTO first_kept
      FROM entitlement_audit a
     WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku AND a.outcome = 'APPLIED'
     ORDER BY a.version LIMIT 1;
    IF first_kept.version IS DISTINCT FROM 1 THEN
        refusal := 'at must not be earlier than ' || rfc3339(coalesce(first_kept.changed_at, p_now))
                || ', the first change in the recorded history of this entitlement';
    END IF;
END
$$;
CREATE FUNCTION public.entitlement_audit_begin() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $_$
    SELECT coalesce(
             to_date(min(right(c.relname::text, 7) COLLATE "C"), 'YYYY"m"MM')::timestamp AT TIME ZONE 'UTC',
             '-infinity')
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$'
$_$;
CREATE FUNCTION public.entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamp with time zone DEFAULT now()) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET lock_timeout TO '500ms'
    SET search_path TO 'public', 'pg_temp'
    AS $_$
DECLARE
    allowed    integer;
    keep       integer     := p_keep_months;
    now        timestamptz := p_now;
    first_kept text;
    oldest     text;
    last       record;
    identity   text        := installation_identity();
BEGIN
    IF p_keep_months < 1 THEN
        RAISE EXCEPTION 'p_keep_months must be at least 1, not %', p_keep_months
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT is_schema_owner() THEN
        SELECT r.keep_months INTO allowed FROM audit_retention r;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the schema owner does not allow dropping audit partitions: set ENTITLEMENT_AUDIT_RETENTION_MONTHS for migrate_database too, and invoke it'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        keep   := greatest(p_keep_months, allowed);
        now := least(p_now, now());
    END IF;
    first_kept := to_char(date_trunc('month', now AT TIME ZONE 'UTC') - make_interval(months => keep),
                          '"entitlement_audit_y"YYYY"m"MM');
    -- Only one session maintains partitions at a time. This lock blocks no reads or writes.
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT min(c.relname COLLATE "C") INTO oldest
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass
       AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$' AND c.relname COLLATE "C" < first_kept;
    IF oldest IS NOT NULL THEN
        -- A higher transaction id is not of this cluster: it came with a dump.
        EXECUTE format(
            $last$SELECT transaction_id, occurred_at, operation_id FROM %I
                   WHERE outcome = 'APPLIED' AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
                   ORDER BY transaction_id DESC, occurred_at DESC, operation_id DESC LIMIT 1$last$, oldest) INTO last;
        EXECUTE format('DROP TABLE %I', oldest);
        UPDATE installation i
           SET dropped_in = identity, dropped_transaction_id = last.transaction_id,
               dropped_occurred_at = last.occurred_at, dropped_operation_id = last.operation_id
         WHERE last.transaction_id IS NOT NULL
           AND (i.dropped_in IS DISTINCT FROM identity
                OR (i.dropped_transaction_id, i.dropped_occurred_at, i.dropped_operation_id)
                   < (last.transaction_id, last.occurred_at, last.operation_id));
    END IF;
    RETURN oldest;
END
$_$;
CREATE FUNCTION public.entitlement_audit_ensure_partitions(p_months_ahead integer, p_now timestamp with time zone DEFAULT now()) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    first_month timestamp := date_trunc('month', p_now AT TIME ZONE 'UTC');
    this_month  timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month_start timestamptz;
    month_end   timestamptz;
    partition   text;
BEGIN
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    FOR ahead IN 0 .. p_months_ahead LOOP
        month_start := (first_month + make_interval(months => ahead)) AT TIME ZONE 'UTC';
        month_end   := (first_month + make_interval(months => ahead + 1)) AT TIME ZONE 'UTC';
        partition   := to_char(first_month + make_interval(months => ahead), '"entitlement_audit_y"YYYY"m"MM');
        CONTINUE WHEN EXISTS (SELECT FROM pg_inherits
                               WHERE inhparent = 'entitlement_audit'::regclass AND inhrelid = to_regclass(partition));
        IF month_start AT TIME ZONE 'UTC' NOT BETWEEN this_month AND this_month + interval '12 months'
           AND NOT EXISTS (SELECT FROM entitlement_audit_default
                            WHERE occurred_at >= month_start AND occurred_at < month_end)
           AND NOT is_schema_owner() THEN
            RAISE EXCEPTION 'an audit partition for % can be created only by the schema owner', month_start
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF month_start <= clock_timestamp() THEN
            LOCK TABLE entitlement_audit IN SHARE ROW EXCLUSIVE MODE;
        END IF;
        EXECUTE format('CREATE TABLE %I (LIKE entitlement_audit INCLUDING ALL)', partition);
        EXECUTE format(
            'WITH moved AS (DELETE FROM entitlement_audit_default WHERE occurred_at >= %L AND occurred_at < %L RETURNING *)
             INSERT INTO %I SELECT * FROM moved', month_start, month_end, partition);
        EXECUTE format('ALTER TABLE entitlement_audit ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       partition, month_start, month_end);
        RETURN NEXT partition;
    END LOOP;
END
$$;
CREATE FUNCTION public.entitlement_check(p_user_id text, p_sku text, p_entitlement public.entitlements, p_grace interval, p_cache interval, p_now timestamp with time zone, OUT body text, OUT etag text, OUT max_age integer) RETURNS record
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    AS $$
DECLARE
    -- Never earlier than the last change: a clock that was set back does not undo a recorded start (W6).
    state       text := entitlement_state(
        p_entitlement.status, p_entitlement.starts_at, p_entitlement.expires_at, p_grace,
        greatest(p_now, p_entitlement.updated_at));
    ends_at     timestamptz := p_entitlement.expires_at + p_grace;
    reason_code text := CASE WHEN state = 'NONE' THEN 'NOT_GRANTED'
                             WHEN state = 'ACTIVE' AND p_entitlement.expires_at <= p_now THEN 'GRACE'
                             ELSE state END;
    -- Only absolute times, so that the message is the same until the state changes. An end that was recorded before grace
    -- became longer is not moved.
    message     text := CASE reason_code
        WHEN 'ACTIVE' THEN coalesce('active until ' || rfc3339(p_entitlement.expires_at), 'active without an end')
        WHEN 'GRACE' THEN 'ended at ' || rfc3339(p_entitlement.expires_at) || ', grace until ' || rfc3339(ends_at)
        WHEN 'SCHEDULED' THEN 'starts at ' || rfc3339(p_entitlement.starts_at)
        WHEN 'EXPIRED' THEN 'ended at '
            || rfc3339(CASE p_entitlement.status WHEN 'EXPIRED' THEN least(ends_at, p_entitlement.updated_at)
                                                 ELSE ends_at END)
        WHEN 'REVOKED' THEN 'revoked at ' || rfc3339(p_entitlement.updated_at)
        ELSE 'not granted' END;
    cache_until timestamptz := CASE WHEN p_cache IS NOT NULL THEN least(
        p_now + p_cache, CASE state WHEN 'SCHEDULED' THEN p_entitlement.starts_at WHEN 'ACTIVE' THEN ends_at END) END;
BEGIN
    body := '{"user_id":' || to_json(p_user_id)
         || ',"stock_keeping_unit":' || to_json(p_sku)
         || ',"allowed":' || (state = 'ACTIVE')
         || ',"status":"' || state
         || '","reason":{"code":"' || reason_code || '","message":"' || message
         || '"},"version":' || coalesce(p_entitlement.version::text, 'null')
         || entitlement_fields(p_entitlement, true)
         || ',"updated_at":' || coalesce('"' || rfc3339(p_entitlement.updated_at) || '"', 'null');
    etag := left(encode(sha256(convert_to(body, 'UTF8')), 'hex'), 32);
    max_age := floor(extract(epoch FROM cache_until - p_now));
    body := body || ',"checked_at":"' || rfc3339(p_now)
         || '","cache_until":' || coalesce('"' || rfc3339(cache_until) || '"', 'null') || '}';
END
$$;
CREATE FUNCTION public.entitlement_event_type(p_operation text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE p_operation WHEN 'GRANT'::text THEN 'EntitlementGranted'::text WHEN 'REVOKE'::text THEN 'EntitlementRevoked'::text WHEN 'EXTEND'::text THEN 'EntitlementExtended'::text WHEN 'START'::text THEN 'EntitlementStarted'::text WHEN 'EXPIRING'::text THEN 'EntitlementExpiring'::text WHEN 'EXPIRE'::text THEN 'EntitlementExpired'::text ELSE NULL::text END;
CREATE FUNCTION public.entitlement_fields(p_row anyelement, p_nulls boolean) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
SELECT coalesce(',"starts_at":"' || rfc3339((p_row).starts_at) || '"',
                CASE WHEN p_nulls THEN ',"starts_at":null' ELSE '' END)
    || coalesce(',"expires_at":"' || rfc3339((p_row).expires_at) || '"',
                CASE WHEN p_nulls THEN ',"expires_at":null' ELSE '' END)
$$;
CREATE FUNCTION public.entitlement_history(p_user_id text, p_sku text, p_before timestamp with time zone, p_limit integer) RETURNS TABLE(change text, changed_at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
BEGIN
    IF p_limit > 1001 THEN
        RAISE EXCEPTION 'at most 1001 changes can be read at once, not %', p_limit
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
        SELECT '{"version":' || a.version || ',"operation":"' || a.operation
               || '","status":"' || entitlement_state(a.status, a.starts_at, NULL, '0', a.changed_at)
               || '","occurred_at":"' || rfc3339(a.changed_at)
               || '","reason":' || coalesce(to_json(a.detail->>'reason')::text, 'null')
               || ',"purchase_id":' || coalesce(to_json(a.purchase_id)::text, 'null')
               || ',"caller":' || to_json(a.caller) || entitlement_fields(a, false) || '}',
               a.changed_at
          FROM entitlement_audit a
         WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku
           AND a.changed_at < coalesce(p_before, 'infinity') AND a.outcome = 'APPLIED'
         ORDER BY a.version DESC LIMIT p_limit;
END
$$;
CREATE FUNCTION public.entitlement_json(p_entitlement public.entitlements, p_status text, p_with_user boolean, p_with_fields boolean) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
SELECT CASE WHEN p_with_user THEN '{"user_id":' || to_json(p_entitlement.user_id) || ',' ELSE '{' END
    || '"stock_keeping_unit":' || to_json(p_entitlement.stock_keeping_unit)
    || ',"status":"' || p_status || '","version":' || p_entitlement.version
    || ',"updated_at":"' || rfc3339(p_entitlement.updated_at) || '"'
    || CASE WHEN p_with_fields THEN entitlement_fields(p_entitlement, false) ELSE '' END || '}'
$$;
CREATE FUNCTION public.entitlement_lock_key(p_user_id text, p_sku text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN hashtext(((p_user_id || '/'::text) || p_sku));
CREATE FUNCTION public.entitlement_state(p_status text, p_starts_at timestamp with time zone, p_expires_at timestamp with time zone, p_grace interval, p_now timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (p_status IS NULL) THEN 'NONE'::text WHEN (p_status <> 'ACTIVE'::text) THEN p_status WHEN (p_starts_at > p_now) THEN 'SCHEDULED'::text WHEN ((p_expires_at + p_grace) <= p_now) THEN 'EXPIRED'::text ELSE 'ACTIVE'::text END;
CREATE FUNCTION public.entitlement_status_after(p_event_type text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE p_event_type WHEN 'EntitlementGranted'::text THEN 'ACTIVE'::text WHEN 'EntitlementRevoked'::text THEN 'REVOKED'::text WHEN 'EntitlementExtended'::text THEN 'ACTIVE'::text WHEN 'EntitlementStarted'::text THEN 'ACTIVE'::text WHEN 'EntitlementExpiring'::text THEN 'ACTIVE'::text WHEN 'EntitlementExpired'::text THEN 'EXPIRED'::text ELSE NULL::text END;
CREATE FUNCTION public.entitlement_transition(p_change public.entitlement_change, p_grace interval, p_notice interval, OUT refusal text, OUT invalid text, OUT entitlement public.entitlements) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    current         entitlements;
    decided_at      timestamptz;
    effective_start timestamptz;
    has_notice      boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(
        x'6777656e'::integer, entitlement_lock_key(p_change.user_id, p_change.stock_keeping_unit));
    SELECT e.* INTO current FROM entitlements e
     WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit FOR UPDATE;
    decided_at := greatest(clock_timestamp(), current.updated_at + interval '1 microsecond');
    IF current.version IS NOT NULL THEN
        current    := apply_due(current, p_grace, p_notice, p_change.trace_id, decided_at);
        decided_at := greatest(decided_at, current.updated_at + interval '1 microsecond');
    END IF;
    IF p_change.expires_at <= decided_at THEN
        invalid := 'expires_at must be in the future';
        RETURN;
    END IF;
    -- A start in the past means now.
    effective_start := CASE WHEN p_change.starts_at IS NOT NULL THEN greatest(p_change.starts_at, decided_at) END;
    -- Whether EntitlementExpiring will be recorded. An end that is nearer than the notice, or whose notice would come
    -- before the start, has none.
    has_notice := coalesce(
        p_notice > interval '0' AND p_change.expires_at - p_notice > greatest(effective_start, decided_at), false);
    IF p_change.operation = 'GRANT' THEN
        IF current.version IS NULL THEN
            INSERT INTO entitlements AS e
                   (user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at, purchase_id,
                    start_pending, expiring_pending)
            VALUES (p_change.user_id, p_change.stock_keeping_unit, 'ACTIVE', 1, decided_at, effective_start,
                    p_change.expires_at, p_change.purchase_id, coalesce(effective_start > decided_at, false), has_notice)
            RETURNING e.* INTO entitlement;
        ELSIF current.status = 'ACTIVE' THEN
            refusal := 'already ' || CASE WHEN current.start_pending THEN 'SCHEDULED' ELSE 'ACTIVE' END;
        ELSE
            UPDATE entitlements e
               SET status           = 'ACTIVE',
                   version          = e.version + 1,
                   updated_at       = decided_at,
                   starts_at        = effective_start,
                   expires_at       = p_change.expires_at,
                   purchase_id      = p_change.purchase_id,
                   start_pending    = coalesce(effective_start > decided_at, false),
                   expiring_pending = has_notice
             WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit
            RETURNING e.* INTO entitlement;
        END IF;
    ELSIF current.version IS NULL THEN
        refusal := 'not granted';
    ELSIF current.status <> 'ACTIVE' THEN
        refusal := 'already ' || current.status;
    ELSIF p_change.operation = 'REVOKE' THEN
        UPDATE entitlements e
           SET status           = 'REVOKED',
               version          = e.version + 1,
               updated_at       = decided_at,
               start_pending    = false,
               expiring_pending = false
         WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit
        RETURNING e.* INTO entitlement;
    ELSIF p_change.expires_at IS NOT DISTINCT FROM current.expires_at THEN
        refusal := coalesce('already ends at ' || rfc3339(current.expires_at), 'already has no end');
    ELSIF p_change.expires_at <= current.starts_at THEN
        refusal := 'starts at ' || rfc3339(current.starts_at) || ', so it cannot end earlier';
    ELSE
        UPDATE entitlements e
           SET version          = e.version + 1,
               updated_at       = decided_at,
               expires_at       = p_change.expires_at,
               purchase_id      = p_change.purchase_id,
               expiring_pending = has_notice AND coalesce(p_change.expires_at - p_notice > e.starts_at, true)
         WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit
        RETURNING e.* INTO entitlement;
    END IF;
END
$$;
CREATE FUNCTION public.entitlements_lock(p_user_ids text[], p_skus text[], p_deadline timestamp with time zone, p_lock_wait_ms integer) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION public.expire_due(p_limit integer, p_grace interval, p_notice interval, p_trace_id text, p_isolate boolean, p_skip integer[], OUT started integer, OUT expiring integer, OUT expired integer, OUT failed integer, OUT error text, OUT failed_of integer[]) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.genuine_events(p_event_ids uuid[], p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamp with time zone[], p_digests bytea[], p_fields text[]) RETURNS integer[]
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    positions integer[];
BEGIN
    IF cardinality(p_event_ids) > 5000 THEN
        RAISE EXCEPTION 'at most 5000 events can be checked at once, not %', cardinality(p_event_ids)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    positions := ARRAY(
        SELECT e.position::integer
          FROM unnest(p_event_ids, p_user_ids, p_skus, p_event_types, p_versions, p_times, p_fields)
               WITH ORDINALITY AS e (event_id, user_id, sku, event_type, version, occurred_at, fields, position)
         CROSS JOIN LATERAL (
               SELECT FROM entitlement_audit a
                WHERE a.user_id = e.user_id AND a.stock_keeping_unit = e.sku AND a.operation_id = e.event_id
                  AND a.occurred_at > e.occurred_at - interval '1 day'
                  AND a.occurred_at < e.occurred_at + interval '1 day'
                  AND a.outcome = 'APPLIED'
                  AND a.version = e.version
                  AND entitlement_event_type(a.operation) = e.event_type
                  AND entitlement_fields(a, false) = e.fields
                LIMIT 1) AS audited);
    IF cardinality(positions) = cardinality(p_event_ids) THEN
        RETURN positions;
    END IF;
    positions := positions || ARRAY(
        SELECT e.position::integer
          FROM unnest(p_event_ids, p_user_ids, p_skus, p_event_types, p_versions, p_fields)
               WITH ORDINALITY AS e (event_id, user_id, sku, event_type, version, fields, position)
         CROSS JOIN LATERAL (
               SELECT FROM entitlement_audit a
                WHERE a.user_id = e.user_id AND a.stock_keeping_unit = e.sku AND a.operation_id = e.event_id
                  AND a.outcome = 'APPLIED'
                  AND a.version = e.version
                  AND entitlement_event_type(a.operation) = e.event_type
                  AND entitlement_fields(a, false) = e.fields
                LIMIT 1) AS audited
         WHERE e.position <> ALL (positions));
    RETURN positions || ARRAY(
        SELECT e.position::integer
          FROM unnest(p_event_ids, p_digests) WITH ORDINALITY AS e (event_id, digest, position)
         CROSS JOIN LATERAL (
               SELECT FROM notification_nats_dlq d
                WHERE d.event_id = e.event_id AND d.forced AND sha256(d.payload) = e.digest
                LIMIT 1) AS forced
         WHERE e.position <> ALL (positions));
END
$$;
CREATE FUNCTION public.guarded_transaction_begin(p_guard text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF coalesce(current_setting('idempotency.guard', true), '') <> '' THEN
        RAISE EXCEPTION 'a guard is already open in this transaction: guards cannot be nested'
            USING ERRCODE = 'GW002';
    END IF;
    PERFORM set_config('idempotency.guard', p_guard, true);
    INSERT INTO guarded_transactions (guard) VALUES (p_guard);
END
$$;
CREATE FUNCTION public.guarded_transaction_end(p_guard text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM guarded_transactions WHERE guard = p_guard;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no guard is open: `finish` needs `begin`, or the work of `run` has ended the transaction'
            USING ERRCODE = 'GW002';
    END IF;
    PERFORM set_config('idempotency.guard', '', true);
END
$$;
CREATE FUNCTION public.guarded_transactions_refuse_commit() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM guarded_transactions g WHERE g.guard = NEW.guard) THEN
        RAISE EXCEPTION 'a guard is open in this transaction: `begin` needs `finish`, and the work of `run` must not commit'
            USING ERRCODE = 'GW002';
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.idempotency_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_any_isolation boolean DEFAULT false, OUT decision text, OUT status_code integer, OUT body text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    stored_hash text;
BEGIN
    IF NOT p_any_isolation AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    SELECT k.status_code, k.response_body INTO status_code, body
      FROM idempotency_keys k
     WHERE k.caller = p_caller AND k.route = p_route AND k.idempotency_key = p_key
       AND k.expires_at > now() AND k.request_hash = p_request_hash;
    IF FOUND THEN
        decision := 'REPLAYED';
        RETURN;
    END IF;
    -- Also bounds the waits for row locks in the rest of the transaction.
    PERFORM set_config('lock_timeout', p_lock_wait_ms::text, true);
    BEGIN
        -- First 8 bytes of SHA-256(key) as a signed 64-bit integer (I5).
        PERFORM pg_advisory_xact_lock(
            ('x' || left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 16))::bit(64)::bigint);
    EXCEPTION WHEN lock_not_available THEN
        decision := 'REQUEST_IN_PROGRESS';
        RETURN;
    END;
    SELECT k.request_hash, k.status_code, k.response_body INTO stored_hash, status_code, body
      FROM idempotency_keys k
     WHERE k.caller = p_caller AND k.route = p_route AND k.idempotency_key = p_key
       AND k.expires_at > now();
    IF NOT FOUND THEN
        decision := 'PROCEED';
    ELSIF stored_hash = p_request_hash THEN
        decision := 'REPLAYED';
    ELSE
        decision := 'IDEMPOTENCY_KEY_CONFLICT';
        status_code := NULL;
        body := NULL;
    END IF;
END
$$;
CREATE FUNCTION public.idempotency_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO idempotency_keys AS k
           (caller, route, idempotency_key, request_hash, status_code, response_body, created_at, expires_at)
    VALUES (p_caller, p_route, p_key, p_request_hash, p_status_code, p_body, now(), now() + p_ttl)
    ON CONFLICT (caller, route, idempotency_key) DO UPDATE
       SET request_hash  = EXCLUDED.request_hash,
           status_code   = EXCLUDED.status_code,
           response_body = EXCLUDED.response_body,
           created_at    = EXCLUDED.created_at,
           expires_at    = EXCLUDED.expires_at
     WHERE k.expires_at <= now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'idempotency invariant broken: a live key was about to be replaced'
            USING ERRCODE = 'GW001', DETAIL = format('route %s', p_route);
    END IF;
END
$$;
CREATE FUNCTION public.idempotency_lock_keys(p_caller text, p_routes text[], p_keys text[], p_request_hashes text[], p_lock_wait_ms integer) RETURNS integer[]
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION public.inbox_begin(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    SELECT c.decision, c.stored_result, c.free_in, c.fence INTO decision, stored_result, free_in, fence
      FROM inbox_check(p_key, p_token, p_mark, p_message_id, p_message_type, p_ttl, p_lock_wait_ms, p_now, false) c;
    IF decision = 'NEW' THEN
        PERFORM guarded_transaction_begin(p_token);
    END IF;
END
$$;
CREATE FUNCTION public.inbox_check(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, p_any_isolation boolean, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    lock_timeout_of_user constant text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', p_lock_wait_ms::text, true);
    BEGIN
        SELECT c.decision, c.stored_result, c.free_in, c.fence INTO decision, stored_result, free_in, fence
          FROM processed_message_check(p_key, p_token, p_mark, p_message_id, p_message_type, p_ttl, p_now,
                                       p_any_isolation => p_any_isolation) c;
    EXCEPTION WHEN lock_not_available THEN
        decision := 'IN_PROGRESS';
        free_in := make_interval(secs => p_lock_wait_ms / 1000.0);
    END;
    PERFORM set_config('lock_timeout', lock_timeout_of_user, true);
END
$$;
CREATE FUNCTION public.inbox_finish(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval, p_result_ttl interval, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM guarded_transaction_end(p_token);
    IF NOT processed_message_complete(p_key, p_token, p_mark, p_message_id, p_message_type, p_result, p_ttl,
                                      p_result_ttl, p_now) THEN
        RAISE EXCEPTION 'idempotency invariant broken: the message of an inbox guard was taken' USING ERRCODE = 'GW001';
    END IF;
END
$$;
CREATE FUNCTION public.inbox_record(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT decision text, OUT free_in interval) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        decision := 'READ_ONLY';
        RETURN;
    END IF;
    SELECT c.decision, c.free_in INTO decision, free_in
      FROM inbox_check(p_key, p_token, p_mark, p_message_id, p_message_type, p_ttl, p_lock_wait_ms, p_now, true) c;
    IF decision = 'NEW' AND NOT processed_message_complete(
            p_key, p_token, p_mark, p_message_id, p_message_type, NULL, p_ttl, p_ttl, p_now) THEN
        RAISE EXCEPTION 'idempotency invariant broken: the message of an inbox was taken' USING ERRCODE = 'GW001';
    END IF;
END
$$;
CREATE FUNCTION public.installation_identity() RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    cluster  text := '-';
    timeline text := '-';
BEGIN
    BEGIN
        cluster := (SELECT c.system_identifier FROM pg_control_system() c);
    EXCEPTION WHEN feature_not_supported OR object_not_in_prerequisite_state OR insufficient_privilege THEN
        NULL;
    END;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN feature_not_supported OR object_not_in_prerequisite_state OR insufficient_privilege THEN
        NULL;
    END;
    RETURN (SELECT left(encode(sha256(convert_to(concat_ws('/', i.installation_id, cluster, timeline, d.oid,
                                                           'entitlement_audit'::regclass::oid), 'UTF8')), 'hex'), 16)
              FROM installation i, pg_database d
             WHERE d.datname = current_database());
END
$$;
CREATE FUNCTION public.installation_renew() RETURNS text
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE entitlement_audit
       SET transaction_id = NULL
     WHERE outcome = 'APPLIED' AND transaction_id >= pg_snapshot_xmax(pg_current_snapshot());
    UPDATE installation
       SET installation_id = gen_random_uuid(), dropped_in = NULL, dropped_transaction_id = NULL,
           dropped_occurred_at = NULL, dropped_operation_id = NULL;
    RETURN installation_identity();
END
$$;
CREATE FUNCTION public.is_schema_owner() RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER') FROM pg_class c WHERE c.oid = 'entitlement_audit'::regclass
$$;
CREATE FUNCTION public.key_conflict_count(p_caller text, p_route text, p_key text, p_operation_id uuid) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    counted bigint;
BEGIN
    INSERT INTO key_conflicts AS known (caller, route, key_hash, day, operation_id)
    VALUES (p_caller, p_route, encode(sha256(convert_to(p_key, 'UTF8')), 'hex'),
            (clock_timestamp() AT TIME ZONE 'UTC')::date, p_operation_id)
        ON CONFLICT (caller, route, key_hash, day) DO UPDATE
       SET conflicts = known.conflicts + 1, last_at = clock_timestamp()
    RETURNING conflicts INTO counted;
    RETURN counted;
END
$$;
CREATE FUNCTION public.lock_timeout_until(p_deadline timestamp with time zone, p_lock_wait_ms integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    -- Zero would mean to wait without a limit.
    PERFORM set_config('lock_timeout', least(
        p_lock_wait_ms, greatest(1, extract(epoch FROM p_deadline - clock_timestamp()) * 1000))::integer::text, true);
END
$$;
CREATE FUNCTION public.nats_dead_letter_error(p_kind text, p_deliveries integer, p_reason text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN ((((p_kind || ' after '::text) || p_deliveries) || CASE p_deliveries WHEN 1 THEN ' delivery'::text ELSE ' deliveries'::text END) || COALESCE((': '::text || p_reason), ''::text));
CREATE FUNCTION public.rfc3339(p_time timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN to_char((p_time AT TIME ZONE 'UTC'::text), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'::text);
CREATE FUNCTION public.notification_responses_add(p_responses jsonb, p_at timestamp with time zone, p_response text) RETURNS jsonb
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (CASE WHEN (jsonb_array_length(p_responses) >= 20) THEN (p_responses - 0) ELSE COALESCE(p_responses, '[]'::jsonb) END || jsonb_build_array(jsonb_build_object('at', public.rfc3339(p_at), 'response', p_response)));
CREATE FUNCTION public.oldest_writing_transaction() RETURNS timestamp with time zone
    LANGUAGE plpgsql
    AS $$
DECLARE
    oldest timestamptz;
BEGIN
    PERFORM pg_stat_clear_snapshot();
    WITH sessions AS MATERIALIZED (
        SELECT a.pid, a.xact_start FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid())
    SELECT min(s.xact_start) INTO oldest
      FROM sessions s JOIN pg_locks l ON l.pid = s.pid
     WHERE l.mode = 'RowExclusiveLock' AND l.granted
       AND l.relation IN ('entitlements'::regclass, 'outbox_events'::regclass);
    RETURN oldest;
END
$$;
CREATE FUNCTION public.oldest_writing_transaction_of_all() RETURNS timestamp with time zone
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
    SELECT oldest_writing_transaction()
$$;
CREATE FUNCTION public.operations_status(p_cap integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    now           timestamptz := coalesce(p_now, now());
    outbox        jsonb;
    notifications jsonb;
    dead_letters  jsonb;
    commands      jsonb;
    partitions    jsonb;
BEGIN
    SELECT jsonb_build_object(
             'pending', count(*) FILTER (WHERE o.status = 'PENDING'),
             'in_flight', count(*) FILTER (WHERE o.status = 'IN_FLIGHT'),
             'held', count(*) FILTER (WHERE o.status = 'IN_FLIGHT' AND o.lease_until >= now),
             'expired', count(*) FILTER (WHERE o.status = 'IN_FLIGHT' AND o.lease_until < now),
             'expired_since', rfc3339(min(o.lease_until) FILTER (WHERE o.status = 'IN_FLIGHT' AND o.lease_until < now)),
             'capped', EXISTS (SELECT FROM outbox_events c
                                WHERE c.published_at IS NULL AND c.discarded_at IS NULL OFFSET p_cap),
             'failed', (SELECT count(*) FROM (
                          SELECT FROM outbox_events f WHERE f.failed_at IS NOT NULL LIMIT p_cap) AS failed),
             'parked', (SELECT count(*) FROM (
                SELECT FROM (SELECT f.aggregate_key, f.aggregate_version FROM outbox_events f
                              WHERE f.failed_at IS NOT NULL LIMIT p_cap) AS head
                 CROSS JOIN LATERAL (
                       SELECT FROM outbox_events b
                        WHERE b.aggregate_key = head.aggregate_key AND b.aggregate_version > head.aggregate_version
                          AND b.published_at IS NULL AND b.discarded_at IS NULL AND b.failed_at IS NULL) AS behind
                 LIMIT p_cap) AS parked),
             'oldest_pending_at', (SELECT rfc3339(r.created_at) FROM outbox_events r
                                    WHERE r.ready ORDER BY r.created_at LIMIT 1),
             'oldest_pending_seconds', coalesce((SELECT greatest(0, extract(epoch FROM now - r.created_at))
                                                   FROM outbox_events r
                                                  WHERE r.ready ORDER BY r.created_at LIMIT 1), 0),
             'published_last_minute', (SELECT count(*) FROM (
                SELECT FROM outbox_events p
                 WHERE p.published_at > now - interval '1 minute' AND p.published_at <= now LIMIT p_cap) AS p))
      INTO outbox
      FROM (SELECT e.status, e.lease_until FROM outbox_events e
             WHERE e.published_at IS NULL AND e.discarded_at IS NULL LIMIT p_cap) AS o;
    SELECT jsonb_build_object(
             'pending', count(*) FILTER (WHERE n.status = 'PENDING'),
             'processing', count(*) FILTER (WHERE n.status = 'PROCESSING'),
             'held', count(*) FILTER (WHERE n.lease_until >= now),
             'expired', count(*) FILTER (WHERE n.lease_until < now),
             'expired_since', rfc3339(min(n.lease_until) FILTER (WHERE n.lease_until < now)),
             'capped', EXISTS (SELECT FROM notifications c WHERE c.next_retry_at IS NOT NULL OFFSET p_cap),
             'failed', (SELECT count(*) FROM (
                          SELECT FROM notification_dlq f WHERE f.closed_at IS NULL LIMIT p_cap) AS failed),
             'waiting', coalesce((
                SELECT jsonb_agg(jsonb_build_object(
                           'cause', g.cause, 'count', g.count, 'oldest_at', rfc3339(g.oldest),
                           'next_attempt_at', rfc3339(g.next)) ORDER BY g.count DESC, g.cause)
                  FROM (SELECT dead_letter_cause(w.last_error) AS cause, count(*) AS count, min(w.occurred_at) AS oldest,
                               min(w.next_retry_at) AS next
                          FROM (SELECT u.last_error, u.occurred_at, u.next_retry_at FROM notifications u
                                 WHERE u.next_retry_at IS NOT NULL ORDER BY u.occurred_at LIMIT p_cap) AS w
                         WHERE w.last_error IS NOT NULL
                         GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20) AS g), '[]'),
             'oldest_due_seconds', coalesce(greatest(0, extract(epoch FROM now - min(n.next_retry_at))), 0),
             'processed_last_minute', (SELECT count(*) FROM (
                SELECT FROM processed_events e
                 WHERE e.processed_at > now - interval '1 minute' AND e.processed_at <= now LIMIT p_cap) AS e),
             'sent_last_minute', (SELECT count(*) FROM (
                SELECT FROM (SELECT s.sent_at FROM notifications s
                              WHERE s.created_at > now - interval '1 hour'
                              ORDER BY s.created_at DESC LIMIT p_cap) AS recent
                 WHERE recent.sent_at > now - interval '1 minute' AND recent.sent_at <= now) AS s))
      INTO notifications
      FROM (SELECT d.status, d.lease_until, d.next_retry_at FROM notifications d
             WHERE d.next_retry_at IS NOT NULL ORDER BY d.next_retry_at LIMIT p_cap) AS n;
    dead_letters := dead_letter_groups(p_cap, 20);
    SELECT jsonb_build_object(
             'pending', count(*) FILTER (WHERE c.status = 'PENDING'),
             'running', count(*) FILTER (WHERE c.status = 'RUNNING'),
             'held', count(*) FILTER (WHERE c.lease_until >= now),
             'expired', count(*) FILTER (WHERE c.lease_until < now),
             'expired_since', rfc3339(min(c.lease_until) FILTER (WHERE c.lease_until < now)),
             'failed_last_day', (SELECT count(*) FROM (
                SELECT FROM operator_commands f
                 WHERE f.finished_at > now - interval '1 day' AND f.status = 'FAILED' LIMIT p_cap) AS f),
             'last_failure', (SELECT jsonb_build_object('at', rfc3339(l.finished_at), 'error', l.last_error)
                                FROM operator_commands l
                               WHERE l.finished_at > now - interval '1 day' AND l.status = 'FAILED'
                               ORDER BY l.finished_at DESC LIMIT 1))
      INTO commands
      FROM (SELECT o.status, o.lease_until FROM operator_commands o WHERE o.finished_at IS NULL LIMIT p_cap) AS c;
    -- The months from this one on that have a partition, up to the first that has none.
    WITH months AS (
        SELECT ahead, date_trunc('month', now AT TIME ZONE 'UTC') + make_interval(months => ahead) AS month
          FROM generate_series(0, 24) AS ahead),
    present AS (
        SELECT m.ahead, m.month FROM months m
          JOIN pg_inherits i ON i.inhparent = 'entitlement_audit'::regclass
           AND i.inhrelid = to_regclass(to_char(m.month, '"entitlement_audit_y"YYYY"m"MM'))),
    covered AS (
        SELECT coalesce(min(m.ahead), 25) - 1 AS ahead FROM months m
         WHERE NOT EXISTS (SELECT FROM present p WHERE p.ahead = m.ahead))
    SELECT jsonb_build_object(
             'months_ahead', c.ahead,
             'last_month', (SELECT to_char(p.month, 'YYYY-MM') FROM present p WHERE p.ahead = c.ahead),
             'rows_in_default', (SELECT count(*) FROM (
                SELECT d.occurred_at FROM entitlement_audit_default d LIMIT p_cap) AS d))
      INTO partitions
      FROM covered c;
    RETURN jsonb_build_object(
        'at', rfc3339(now), 'outbox', outbox, 'notifications', notifications, 'dead_letters', dead_letters,
        'commands', commands, 'partitions', partitions,
        'version', schema_version());
END
$$;
CREATE FUNCTION public.operator_actions_append_only() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'operator_actions is append-only: % is not allowed', TG_OP USING ERRCODE = 'restrict_violation';
END
$$;
CREATE FUNCTION public.operator_actions_find(p_dead_letter_ids uuid[], p_limit integer) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
BEGIN
    IF cardinality(p_dead_letter_ids) > 1000 OR p_limit > 1000 THEN
        RAISE EXCEPTION 'at most 1000 dead letters and 1000 actions' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN coalesce((
        SELECT jsonb_agg(jsonb_build_object(
                 'action_id', a.action_id, 'action', a.action, 'actor', a.actor, 'reason', a.reason,
                 'source', a.source, 'dry_run', a.dry_run, 'at', rfc3339(a.occurred_at),
                 'dead_letter_ids', a.ids) ORDER BY a.occurred_at DESC, a.batch DESC)
          FROM (SELECT o.*, ARRAY(SELECT unnest(o.dead_letter_ids)
                                  INTERSECT SELECT unnest(p_dead_letter_ids)) AS ids
                  FROM operator_actions o
                 WHERE o.dead_letter_ids && p_dead_letter_ids
                 ORDER BY o.occurred_at DESC
                 LIMIT p_limit) AS a), '[]');
END
$$;
CREATE FUNCTION public.outbox_confirmation_status(p_cap integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    now      timestamptz := coalesce(p_now, now());
    listed   jsonb;
    behind   record;
    redrives record;
    result   jsonb;
BEGIN
    SELECT jsonb_build_object(
             'waiting', count(*) FILTER (WHERE u.state = 'WAITING' AND NOT has_arrived),
             'republished', count(*) FILTER (WHERE u.state = 'REPUBLISHED' AND NOT has_arrived),
             'capped', count(*) >= p_cap)
      INTO listed
      FROM (SELECT x.state, x.event_id FROM outbox_unconfirmed x LIMIT p_cap) AS u
     CROSS JOIN LATERAL (
           SELECT EXISTS (SELECT FROM processed_events e WHERE e.event_id = u.event_id) AS has_arrived OFFSET 0) AS a;
    SELECT count(*) AS read, count(*) FILTER (WHERE num_nonnulls(e.found, u.found, d.found) = 0) AS missing
      INTO behind
      FROM (SELECT o.event_id, o.stream_sequence FROM outbox_events o
             WHERE o.published_at > (SELECT c.mark FROM outbox_confirmation c)
             ORDER BY o.published_at LIMIT p_cap) AS n
      LEFT JOIN LATERAL (
           SELECT true AS found FROM processed_events e WHERE e.event_id = n.event_id LIMIT 1) AS e ON true
      LEFT JOIN LATERAL (
           SELECT true AS found FROM outbox_unconfirmed u WHERE u.event_id = n.event_id LIMIT 1) AS u ON true
      LEFT JOIN LATERAL (
           SELECT true AS found FROM notification_nats_dlq d
            WHERE d.event_id = n.event_id AND d.stream_seq = n.stream_sequence LIMIT 1) AS d ON true;
    SELECT count(*) FILTER (WHERE NOT has_arrived) AS count
      INTO redrives
      FROM (SELECT d.event_id FROM notification_nats_dlq d
             WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
             ORDER BY coalesce(d.event_time, d.message_time, d.advised_at) LIMIT p_cap) AS r
     CROSS JOIN LATERAL (
           SELECT EXISTS (SELECT FROM processed_events e WHERE e.event_id = r.event_id) AS has_arrived OFFSET 0) AS a;
    SELECT jsonb_build_object(
             'checked_at', rfc3339(c.completed_at),
             'checked_seconds_ago', greatest(0, extract(epoch FROM now - c.completed_at)),
             'unchecked_since', rfc3339(coalesce(c.completed_at, (
                 SELECT o.published_at FROM outbox_events o
                  WHERE o.published_at IS NOT NULL ORDER BY o.published_at LIMIT 1))),
             'unconfirmed', (listed->>'waiting')::bigint + (listed->>'republished')::bigint + behind.missing,
             'waiting', (listed->>'waiting')::bigint + behind.missing,
             'republished', (listed->>'republished')::bigint,
             'capped', (listed->>'capped')::boolean OR behind.read >= p_cap,
             'redrives', redrives.count,
             'too_old', (SELECT count(*) FROM (
                 SELECT FROM outbox_unconfirmed u WHERE u.state = 'TOO_OLD' LIMIT p_cap) AS t),
             'too_old_since', (SELECT rfc3339(u.found_at) FROM outbox_unconfirmed u WHERE u.state = 'TOO_OLD'
                                ORDER BY u.found_at LIMIT 1),
             'republished_last_hour', (SELECT count(*) FROM (
                 SELECT FROM outbox_republications r
                  WHERE r.put_back_at > now - interval '1 hour' LIMIT p_cap) AS r),
             'last_republished_at', (SELECT rfc3339(r.put_back_at) FROM outbox_republications r
                                      ORDER BY r.put_back_at DESC LIMIT 1),
             'losses', coalesce((
                 SELECT jsonb_agg(jsonb_build_object(
                            'loss_id', l.loss_id, 'cause', l.cause, 'first_sequence', l.first_sequence,
                            'last_sequence', l.last_sequence, 'detected_at', rfc3339(l.detected_at),
                            'completed_at', rfc3339(l.completed_at), 'events_lost', l.events_lost,
                            'events_republished', l.events_republished) ORDER BY l.loss_id DESC)
                   FROM (SELECT * FROM stream_losses s
                          WHERE s.detected_at > now - interval '1 day' AND s.cause <> 'DELETED'
                          ORDER BY s.detected_at DESC LIMIT 20) AS l), '[]'))
      INTO result FROM outbox_confirmation c;
    RETURN result;
END
$$;
CREATE FUNCTION public.outbox_discard(p_event_ids uuid[], p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    lost uuid[];
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM outbox_lock_entitlements(p_event_ids);
    lost := ARRAY(SELECT u.event_id FROM outbox_unconfirmed u
                   WHERE u.event_id = ANY (p_event_ids) AND u.state = 'TOO_OLD');
    PERFORM outbox_lock_closed(p_event_ids);
    WITH discarded AS (
        UPDATE outbox_events o
           SET status = 'DISCARDED', discarded_at = coalesce(p_now, now()), published_at = NULL
         WHERE o.event_id = ANY (p_event_ids)
           AND (o.status = 'FAILED' OR (o.status = 'PUBLISHED' AND o.event_id = ANY (lost)))
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(d.event_id), array_agg(DISTINCT d.aggregate_key) INTO ids, keys FROM discarded d;
    PERFORM outbox_promote(keys);
    DELETE FROM outbox_unconfirmed u
     WHERE u.event_id = ANY (ARRAY(
           SELECT x.event_id FROM outbox_unconfirmed x
            WHERE x.event_id = ANY (ids) AND x.event_id = ANY (lost)
              FOR UPDATE SKIP LOCKED));
    RETURN QUERY SELECT unnest(ids);
END
$$;
CREATE FUNCTION public.outbox_enqueue(p_event_id uuid, p_event_type text, p_aggregate_key text, p_aggregate_version bigint, p_payload jsonb, p_trace_id text) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.outbox_events_failed_at() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.failed_at := CASE NEW.status WHEN 'FAILED' THEN NEW.next_retry_at END;
    RETURN NEW;
END
$$;
CREATE FUNCTION public.outbox_finalise(p_claim text, p_event_ids uuid[], p_now timestamp with time zone, p_sequences bigint[]) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    with_successors boolean := false;
    promoting       boolean;
    closed          integer;
    keys            text[];
BEGIN
    LOOP
        promoting := false;
        BEGIN
            IF with_successors THEN
                PERFORM outbox_lock_closed(p_event_ids);
            END IF;
            WITH locked AS MATERIALIZED (
                SELECT o.event_id FROM outbox_events o
                 WHERE o.event_id = ANY (p_event_ids) AND o.locked_by = p_claim AND o.status = 'IN_FLIGHT'
                 ORDER BY o.aggregate_key, o.aggregate_version
                   FOR UPDATE),
            published AS (
                UPDATE outbox_events o
                   SET status = 'PUBLISHED', published_at = coalesce(p_now, now()), ready = false,
                       stream_sequence = a.stream_sequence, locked_by = NULL, locked_at = NULL, lease_until = NULL
                  FROM unnest(p_event_ids, p_sequences) AS a (event_id, stream_sequence)
                 WHERE o.event_id = ANY (ARRAY(SELECT l.event_id FROM locked l)) AND a.event_id = o.event_id
                RETURNING o.aggregate_key)
            SELECT count(*), array_agg(DISTINCT p.aggregate_key) INTO closed, keys FROM published p;
            promoting := true;
            PERFORM outbox_promote(keys);
            RETURN closed;
        EXCEPTION WHEN lock_not_available THEN
            IF NOT promoting THEN
                RAISE;
            END IF;
            with_successors := true;
        END;
    END LOOP;
END
$$;
CREATE FUNCTION public.outbox_lock_closed(p_event_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
    PERFORM FROM outbox_events o
      WHERE o.event_id = ANY (p_event_ids || ARRAY(
            SELECT near.event_id
              FROM outbox_events c
             CROSS JOIN LATERAL (
                  (SELECT n.event_id FROM outbox_events n
                    WHERE n.aggregate_key = c.aggregate_key AND n.aggregate_version > c.aggregate_version
                      AND n.published_at IS NULL AND n.discarded_at IS NULL
                    ORDER BY n.aggregate_version LIMIT 1)
                   UNION ALL
                   SELECT b.event_id FROM outbox_events b
                    WHERE b.aggregate_key = c.aggregate_key AND b.aggregate_version < c.aggregate_version
                      AND b.published_at IS NULL AND b.discarded_at IS NULL) AS near
             WHERE c.event_id = ANY (p_event_ids)))
      ORDER BY o.aggregate_key, o.aggregate_version
        FOR UPDATE;
END
$$;
CREATE FUNCTION public.outbox_lock_entitlements(p_event_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM entitlements_lock(
        array_agg(o.payload->>'user_id'), array_agg(o.payload->>'stock_keeping_unit'), NULL, NULL)
       FROM outbox_events o WHERE o.event_id = ANY (p_event_ids);
END
$$;
CREATE FUNCTION public.outbox_lock_last(p_aggregate_keys text[], p_deadline timestamp with time zone, p_lock_wait_ms integer) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.outbox_oldest_unconfirmed(p_cap integer) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    listed   timestamptz;
    redriven timestamptz;
    near     record;
    late     record;
BEGIN
    SELECT coalesce(
             (SELECT u.changed_at
                FROM (SELECT x.event_id, x.changed_at FROM outbox_unconfirmed x
                       WHERE x.state <> 'TOO_OLD' ORDER BY x.changed_at LIMIT p_cap) AS u
               CROSS JOIN LATERAL (
                     SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = u.event_id)
                            OR EXISTS (SELECT FROM notification_nats_dlq d
                                         JOIN outbox_events o ON o.event_id = d.event_id
                                        WHERE d.event_id = u.event_id AND d.stream_seq = o.stream_sequence) AS finished
                     OFFSET 0) AS f
               WHERE NOT finished ORDER BY u.changed_at LIMIT 1),
             (SELECT x.changed_at FROM outbox_unconfirmed x
               WHERE x.state <> 'TOO_OLD' ORDER BY x.changed_at OFFSET p_cap LIMIT 1))
      INTO listed;
    SELECT coalesce(
             (SELECT r.changed_at
                FROM (SELECT d.event_id, coalesce(d.event_time, d.message_time, d.advised_at) AS changed_at
                        FROM notification_nats_dlq d
                       WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
                       ORDER BY coalesce(d.event_time, d.message_time, d.advised_at) LIMIT p_cap) AS r
               CROSS JOIN LATERAL (
                     SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = r.event_id) AS finished
                     OFFSET 0) AS f
               WHERE NOT finished ORDER BY r.changed_at LIMIT 1),
             (SELECT coalesce(d.event_time, d.message_time, d.advised_at) FROM notification_nats_dlq d
               WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
               ORDER BY coalesce(d.event_time, d.message_time, d.advised_at) OFFSET p_cap LIMIT 1))
      INTO redriven;
    WITH behind AS MATERIALIZED (
        SELECT o.event_id, o.published_at, o.created_at, o.stream_sequence FROM outbox_events o
         WHERE o.published_at > (SELECT c.mark FROM outbox_confirmation c)
         ORDER BY o.published_at LIMIT p_cap)
    SELECT (SELECT count(*) FROM behind) AS count, (SELECT max(b.published_at) FROM behind b) AS until,
           (SELECT n.created_at
              FROM (SELECT b.event_id, b.created_at, b.stream_sequence FROM behind b ORDER BY b.created_at) AS n
             CROSS JOIN LATERAL (
                   SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = n.event_id)
                          OR EXISTS (SELECT FROM notification_nats_dlq d
                                      WHERE d.event_id = n.event_id AND d.stream_seq = n.stream_sequence) AS finished
                   OFFSET 0) AS f
             WHERE NOT finished ORDER BY n.created_at LIMIT 1) AS oldest
      INTO near;
    IF near.count < p_cap THEN
        RETURN least(listed, redriven, near.oldest);
    END IF;
    WITH published_late AS MATERIALIZED (
        SELECT o.event_id, o.created_at, o.stream_sequence FROM outbox_events o
         WHERE o.published_at >= near.until AND o.published_at - o.created_at > interval '10 seconds'
         ORDER BY o.published_at LIMIT p_cap)
    SELECT (SELECT count(*) FROM published_late) AS count,
           (SELECT n.created_at
              FROM (SELECT l.event_id, l.created_at, l.stream_sequence FROM published_late l ORDER BY l.created_at) AS n
             CROSS JOIN LATERAL (
                   SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = n.event_id)
                          OR EXISTS (SELECT FROM notification_nats_dlq d
                                      WHERE d.event_id = n.event_id AND d.stream_seq = n.stream_sequence) AS finished
                   OFFSET 0) AS f
             WHERE NOT finished ORDER BY n.created_at LIMIT 1) AS oldest
      INTO late;
    RETURN least(
        listed, redriven, near.oldest, near.until - interval '10 seconds', late.oldest,
        CASE WHEN late.count >= p_cap THEN coalesce(
            (SELECT s.settled_through FROM status_samples s ORDER BY s.sampled_at DESC LIMIT 1), to_timestamp(0)) END);
END
$$;
CREATE FUNCTION public.outbox_oldest_unpublished(p_cap integer) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    waiting timestamptz;
    behind  timestamptz;
BEGIN
    SELECT coalesce(
             (SELECT h.created_at
                FROM (SELECT o.event_id, o.created_at, o.republication FROM outbox_events o
                       WHERE o.ready ORDER BY o.created_at LIMIT p_cap) AS h
               CROSS JOIN LATERAL (
                     SELECT h.republication IS NOT NULL
                            AND EXISTS (SELECT FROM processed_events p WHERE p.event_id = h.event_id) AS has_arrived
                     OFFSET 0) AS f
               WHERE NOT has_arrived ORDER BY h.created_at LIMIT 1),
             (SELECT o.created_at FROM outbox_events o WHERE o.ready ORDER BY o.created_at OFFSET p_cap LIMIT 1))
      INTO waiting;
    SELECT min(n.created_at) INTO behind
      FROM (SELECT o.aggregate_key, o.aggregate_version FROM outbox_events o
             WHERE o.ready AND o.republication IS NOT NULL AND o.created_at < coalesce(waiting, 'infinity')
             ORDER BY o.created_at LIMIT p_cap) AS h
     CROSS JOIN LATERAL (
           SELECT x.created_at, x.status FROM outbox_events x
            CROSS JOIN LATERAL (
                  SELECT x.republication IS NOT NULL
                         AND EXISTS (SELECT FROM processed_events p WHERE p.event_id = x.event_id) AS has_arrived
                  OFFSET 0) AS f
            WHERE x.aggregate_key = h.aggregate_key AND x.aggregate_version > h.aggregate_version
              AND x.published_at IS NULL AND x.discarded_at IS NULL AND NOT has_arrived
            ORDER BY x.aggregate_version LIMIT 1) AS n
     WHERE n.status <> 'FAILED';
    RETURN least(waiting, behind);
END
$$;
CREATE FUNCTION public.outbox_promote(p_aggregate_keys text[]) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    promoted integer;
BEGIN
    UPDATE outbox_events o
       SET ready = true
     WHERE o.event_id = ANY (ARRAY(
           SELECT f.event_id
             FROM unnest(p_aggregate_keys) AS k (aggregate_key)
            CROSS JOIN LATERAL (
                  SELECT x.event_id FROM outbox_events x
                   WHERE x.aggregate_key = k.aggregate_key AND x.published_at IS NULL AND x.discarded_at IS NULL
                   ORDER BY x.aggregate_version LIMIT 1) AS first
             JOIN outbox_events f ON f.event_id = first.event_id
            WHERE NOT f.ready AND f.status IN ('PENDING', 'IN_FLIGHT')
              FOR UPDATE OF f NOWAIT));
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END
$$;
CREATE FUNCTION public.outbox_promote_stuck() RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    keys text[];
BEGIN
    SELECT array_agg(l.aggregate_key) INTO keys
      FROM (SELECT o.aggregate_key FROM outbox_events o
             WHERE o.event_id = ANY (ARRAY(
                   SELECT first.event_id
                     FROM (SELECT DISTINCT ON (x.aggregate_key) x.event_id, x.ready, x.status
                             FROM outbox_events x
                            WHERE x.published_at IS NULL AND x.discarded_at IS NULL
                            ORDER BY x.aggregate_key, x.aggregate_version) AS first
                    WHERE NOT first.ready AND first.status <> 'FAILED'))
             ORDER BY o.aggregate_key, o.aggregate_version
               FOR UPDATE) AS l;
    RETURN outbox_promote(keys);
END
$$;
CREATE FUNCTION public.outbox_put_back(p_event_ids uuid[], p_sequences bigint[], p_cause text, p_loss_id bigint, p_arrived boolean, p_oldest timestamp with time zone, p_backoff interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT put_back integer, OUT too_old integer) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    now      timestamptz := coalesce(p_now, now());
    deadline timestamptz := clock_timestamp() + p_lock_wait_ms * interval '1 millisecond';
    user_ids text[];
    skus     text[];
    keys     text[];
    locked   uuid[];
BEGIN
    SELECT array_agg(o.payload->>'user_id'), array_agg(o.payload->>'stock_keeping_unit'),
           array_agg(DISTINCT o.aggregate_key)
      INTO user_ids, skus, keys
      FROM outbox_events o WHERE o.event_id = ANY (p_event_ids);
    BEGIN
        PERFORM entitlements_lock(user_ids, skus, deadline, p_lock_wait_ms);
        locked := ARRAY(
            SELECT o.event_id FROM outbox_events o
             WHERE o.event_id = ANY (p_event_ids || ARRAY(
                     SELECT x.event_id FROM outbox_events x
                      WHERE x.aggregate_key = ANY (keys) AND x.published_at IS NULL AND x.discarded_at IS NULL))
             ORDER BY o.aggregate_key, o.aggregate_version
               FOR UPDATE);
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    WITH lost AS MATERIALIZED (
        SELECT o.event_id, o.created_at, o.stream_sequence, coalesce(o.republication, 0) + 1 AS number, i.arrived
          FROM unnest(p_event_ids, p_sequences) AS a (event_id, stream_sequence)
          JOIN outbox_events o ON o.event_id = a.event_id
         CROSS JOIN LATERAL (
               SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = o.event_id) AS arrived) AS i
         WHERE o.status = 'PUBLISHED' AND o.stream_sequence IS NOT DISTINCT FROM a.stream_sequence
           AND (p_arrived OR NOT i.arrived)
           AND NOT EXISTS (SELECT FROM notification_nats_dlq d
                            WHERE d.event_id = o.event_id AND d.stream_seq = o.stream_sequence
                              AND d.status <> 'PROCESSED')),
    reopened AS (
        UPDATE outbox_events o
           SET status = 'PENDING', ready = false, published_at = NULL, stream_sequence = NULL, attempt_count = 0,
               republication = l.number, last_error = NULL,
               next_retry_at = CASE WHEN l.number = 1 OR p_backoff = interval '0' THEN l.created_at ELSE
                   now + least(interval '10 minutes', p_backoff * 2 ^ least(l.number - 2, 20)) END
          FROM lost l
         WHERE o.event_id = l.event_id AND l.created_at >= p_oldest
        RETURNING l.*),
    refused AS (
        UPDATE outbox_events o
           SET last_error = 'lost by the stream, and the inbox may have forgotten whether it arrived'
          FROM lost l
         WHERE o.event_id = l.event_id AND l.created_at < p_oldest AND NOT l.arrived),
    logged AS (
        INSERT INTO outbox_republications (event_id, number, cause, loss_id, stream_sequence, put_back_at)
        SELECT r.event_id, r.number, p_cause, p_loss_id, r.stream_sequence, now FROM reopened r),
    listed AS (
        INSERT INTO outbox_unconfirmed AS u (event_id, state, changed_at, stream_sequence, found_at)
        SELECT l.event_id, CASE WHEN l.created_at >= p_oldest THEN 'REPUBLISHED' ELSE 'TOO_OLD' END, l.created_at,
               l.stream_sequence, now
          FROM lost l WHERE NOT l.arrived
            ON CONFLICT (event_id) DO UPDATE
           SET state = EXCLUDED.state, stream_sequence = EXCLUDED.stream_sequence, passed_at = NULL
         WHERE u.state <> EXCLUDED.state
        RETURNING u.state)
    SELECT (SELECT count(*) FROM reopened), (SELECT count(*) FROM listed l WHERE l.state = 'TOO_OLD')
      INTO put_back, too_old;
    UPDATE outbox_events o
       SET ready = false
     WHERE o.event_id = ANY (locked) AND o.ready
       AND EXISTS (SELECT FROM outbox_events e
                    WHERE e.aggregate_key = o.aggregate_key AND e.aggregate_version < o.aggregate_version
                      AND e.published_at IS NULL AND e.discarded_at IS NULL);
    PERFORM outbox_promote(keys);
END
$$;
CREATE FUNCTION public.outbox_redrive(p_event_ids uuid[], p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    lost record;
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM outbox_lock_entitlements(p_event_ids);
    SELECT array_agg(o.event_id) AS ids, array_agg(o.stream_sequence) AS sequences
      INTO lost
      FROM outbox_unconfirmed u
      JOIN outbox_events o ON o.event_id = u.event_id
     WHERE u.event_id = ANY (p_event_ids) AND u.state = 'TOO_OLD' AND o.status = 'PUBLISHED';
    PERFORM FROM outbox_events o
      WHERE o.event_id = ANY (lost.ids || ARRAY(
            SELECT x.event_id FROM outbox_events e
              JOIN outbox_events x ON x.aggregate_key = e.aggregate_key
             WHERE e.event_id = ANY (p_event_ids) AND x.published_at IS NULL AND x.discarded_at IS NULL
               AND ((e.status = 'FAILED' AND x.aggregate_version <= e.aggregate_version)
                    OR e.event_id = ANY (lost.ids))))
      ORDER BY o.aggregate_key, o.aggregate_version
        FOR UPDATE;
    WITH redriven AS (
        UPDATE outbox_events o
           SET status = 'PENDING', attempt_count = 0, next_retry_at = o.created_at
         WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(r.event_id), array_agg(DISTINCT r.aggregate_key ORDER BY r.aggregate_key)
      INTO ids, keys FROM redriven r;
    PERFORM outbox_promote(keys);
    IF lost.ids IS NOT NULL THEN
        PERFORM outbox_put_back(
            lost.ids, lost.sequences, 'LOST', NULL, false, '-infinity', interval '0', NULL, p_now);
    END IF;
    RETURN QUERY SELECT unnest(ids || ARRAY(
        SELECT o.event_id FROM outbox_events o WHERE o.event_id = ANY (lost.ids) AND o.status = 'PENDING'));
END
$$;
CREATE FUNCTION public.processed_message_check(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_now timestamp with time zone, p_hash text DEFAULT NULL::text, p_any_isolation boolean DEFAULT false, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint, OUT last_error text, OUT stored_hash text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    moment  timestamptz;
    message processed_messages;
BEGIN
    IF NOT p_any_isolation AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    LOOP
        moment := coalesce(p_now, clock_timestamp());
        SELECT m.* INTO message
          FROM processed_messages m
         WHERE m.idempotency_key = p_key AND processed_message_taken(m, p_token, p_mark, moment);
        IF FOUND AND processed_message_covers(message, p_mark, moment) THEN
            decision := 'DUPLICATE';
            stored_result := CASE WHEN coalesce(message.result_until, 'infinity') > moment THEN message.result END;
            stored_hash := CASE WHEN message.completed_mark IS NOT DISTINCT FROM p_mark THEN message.completed_hash END;
            RETURN;
        ELSIF FOUND THEN
            decision := 'IN_PROGRESS';
            free_in := message.claimed_until - moment;
            stored_hash := CASE WHEN message.claimed_mark IS NOT DISTINCT FROM p_mark THEN message.claimed_hash END;
            RETURN;
        END IF;
        INSERT INTO processed_messages AS m
               (idempotency_key, message_id, message_type, status, started_at, expires_at, created_at, updated_at,
                claimed_by, claimed_mark, claimed_hash, claimed_until)
        VALUES (p_key, p_message_id, p_message_type, 'processing', moment, moment + p_ttl, moment, moment,
                p_token, p_mark, p_hash, moment + p_ttl)
        ON CONFLICT (idempotency_key) DO UPDATE
           SET message_id    = EXCLUDED.message_id,
               message_type  = EXCLUDED.message_type,
               status        = EXCLUDED.status,
               started_at    = EXCLUDED.started_at,
               expires_at    = greatest(EXCLUDED.claimed_until, m.completed_until, m.failed_until),
               updated_at    = EXCLUDED.updated_at,
               claimed_by    = EXCLUDED.claimed_by,
               claimed_mark  = EXCLUDED.claimed_mark,
               claimed_hash  = EXCLUDED.claimed_hash,
               claimed_until = EXCLUDED.claimed_until
         WHERE NOT processed_message_taken(m, p_token, p_mark, moment)
        -- The number is drawn when the row is written. One that VALUES drew would be older than the number of a run for
        -- which the INSERT waited, if the row of that run is deleted.
        RETURNING nextval('idempotency_fences'), CASE WHEN m.failed_until > moment THEN m.error END INTO fence, last_error;
        IF FOUND THEN
            decision := 'NEW';
            RETURN;
        END IF;
    END LOOP;
END
$$;
CREATE FUNCTION public.processed_message_complete(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval, p_result_ttl interval, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    moment timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    UPDATE processed_messages AS m
       SET message_id      = p_message_id,
           message_type    = p_message_type,
           status          = 'completed',
           completed_at    = moment,
           error           = NULL,
           expires_at      = moment + p_ttl,
           updated_at      = moment,
           claimed_by      = NULL,
           claimed_mark    = NULL,
           claimed_hash    = NULL,
           claimed_until   = NULL,
           completed_by    = p_token,
           completed_mark  = p_mark,
           completed_hash  = m.claimed_hash,
           completed_until = moment + p_ttl,
           result          = p_result,
           result_until    = CASE WHEN p_result_ttl < p_ttl THEN moment + p_result_ttl END,
           failed_until    = NULL
     WHERE m.idempotency_key = p_key
       AND m.claimed_by = p_token
       AND m.claimed_until > moment
       AND NOT processed_message_covers(m, p_mark, moment);
    RETURN FOUND OR EXISTS (
        SELECT FROM processed_messages m
         WHERE m.idempotency_key = p_key AND m.completed_by = p_token AND m.completed_until > moment);
END
$$;
CREATE TABLE public.processed_messages (
    idempotency_key text NOT NULL COLLATE pg_catalog."C",
    message_id text NOT NULL,
    message_type text NOT NULL,
    status text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    completed_at timestamp with time zone,
    error text,
    expires_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    claimed_by text,
    claimed_mark bigint,
    claimed_hash text,
    claimed_until timestamp with time zone,
    completed_by text,
    completed_mark bigint,
    completed_hash text,
    completed_until timestamp with time zone,
    result text,
    result_until timestamp with time zone,
    failed_until timestamp with time zone,
    CONSTRAINT processed_messages_claim CHECK ((((claimed_by IS NULL) = (claimed_until IS NULL)) AND ((claimed_by IS NOT NULL) OR ((claimed_mark IS NULL) AND (claimed_hash IS NULL))))),
    CONSTRAINT processed_messages_hash_length CHECK (((char_length(claimed_hash) <= 100) AND (char_length(completed_hash) <= 100))),
    CONSTRAINT processed_messages_id_length CHECK ((char_length(message_id) <= 256)),
    CONSTRAINT processed_messages_key_length CHECK (((char_length(idempotency_key) >= 1) AND (char_length(idempotency_key) <= 256))),
    CONSTRAINT processed_messages_lifetime CHECK ((expires_at = GREATEST(claimed_until, completed_until, failed_until))),
    CONSTRAINT processed_messages_marks CHECK (((claimed_mark >= 0) AND (completed_mark >= 0))),
    CONSTRAINT processed_messages_record CHECK ((((completed_by IS NULL) = (completed_until IS NULL)) AND ((completed_by IS NOT NULL) OR ((completed_mark IS NULL) AND (completed_hash IS NULL) AND (result IS NULL))))),
    CONSTRAINT processed_messages_status CHECK ((status = ANY (ARRAY['processing'::text, 'completed'::text, 'failed'::text]))),
    CONSTRAINT processed_messages_type_length CHECK ((char_length(message_type) <= 100))
);
COMMENT ON TABLE public.processed_messages IS 'One row for each message, job or entity. A claim, a completion and a failure expire separately; expires_at is the last of the three times.';
COMMENT ON COLUMN public.processed_messages.status IS 'The last event. The *_until columns say whether it is still live.';
COMMENT ON COLUMN public.processed_messages.started_at IS 'When the key was last claimed.';
COMMENT ON COLUMN public.processed_messages.completed_at IS 'When the key was last completed.';
COMMENT ON COLUMN public.processed_messages.claimed_by IS 'Token of the claim. While the claim is live, only its holder can complete the key.';
COMMENT ON COLUMN public.processed_messages.completed_mark IS 'Version or time of the completion; only a later mark is new. NULL: every mark is a duplicate.';
COMMENT ON COLUMN public.processed_messages.completed_hash IS 'Hash of what the completed run was called with. The same key with another hash is a conflict. NULL: not checked.';
COMMENT ON COLUMN public.processed_messages.result_until IS 'When the result expires, if that is before the end of the completion. NULL: with the completion.';
CREATE FUNCTION public.processed_message_covers(m public.processed_messages, p_mark bigint, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT coalesce(m.completed_until > p_now, false) AND coalesce(p_mark <= m.completed_mark, true)
$$;
CREATE FUNCTION public.processed_message_fail(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_error text, p_ttl interval, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    moment timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO processed_messages AS m
           (idempotency_key, message_id, message_type, status, started_at, error, expires_at, created_at, updated_at,
            failed_until)
    VALUES (p_key, p_message_id, p_message_type, 'failed', moment, p_error, moment + p_ttl, moment, moment,
            moment + p_ttl)
    ON CONFLICT (idempotency_key) DO UPDATE
       SET message_id    = EXCLUDED.message_id,
           message_type  = EXCLUDED.message_type,
           status        = CASE WHEN m.completed_until > moment THEN 'completed' ELSE 'failed' END,
           error         = EXCLUDED.error,
           expires_at    = greatest(EXCLUDED.failed_until, m.completed_until),
           updated_at    = EXCLUDED.updated_at,
           claimed_by    = NULL,
           claimed_mark  = NULL,
           claimed_hash  = NULL,
           claimed_until = NULL,
           failed_until  = EXCLUDED.failed_until
     WHERE NOT processed_message_taken(m, p_token, p_mark, moment);
    RETURN FOUND;
END
$$;
CREATE FUNCTION public.processed_message_taken(m public.processed_messages, p_token text, p_mark bigint, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT coalesce(m.claimed_until > p_now AND m.claimed_by <> p_token, false)
        OR processed_message_covers(m, p_mark, p_now)
$$;
CREATE FUNCTION public.record_change(p_change public.entitlement_change, p_entitlement public.entitlements, p_detail jsonb) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    event_type text := entitlement_event_type(p_change.operation);
    fields     text := entitlement_fields(p_entitlement, false);
    payload    jsonb := jsonb_build_object(
        'event_id', p_change.operation_id, 'event_type', event_type, 'occurred_at', rfc3339(p_entitlement.updated_at),
        'user_id', p_entitlement.user_id, 'stock_keeping_unit', p_entitlement.stock_keeping_unit,
        'source', p_change.reason, 'source_id', p_change.purchase_id, 'version', p_entitlement.version);
BEGIN
    IF fields <> '' THEN
        payload := payload || ('{' || substr(fields, 2) || '}')::jsonb;
    END IF;
    -- Before the audit, so that no transaction waits for an event while it holds up the maintenance of partitions.
    PERFORM outbox_enqueue(
        p_change.operation_id, event_type,
        entitlement_aggregate_key(p_entitlement.user_id, p_entitlement.stock_keeping_unit), p_entitlement.version,
        payload, p_change.trace_id);
    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail,
            version, status, purchase_id, source_address, starts_at, expires_at, changed_at, correlation_id)
    VALUES (p_change.operation_id, p_change.caller, p_change.operation, 'APPLIED', p_entitlement.user_id,
            p_entitlement.stock_keeping_unit, p_change.trace_id, p_detail,
            p_entitlement.version, p_entitlement.status, p_change.purchase_id, p_change.source_address,
            p_entitlement.starts_at, p_entitlement.expires_at, p_entitlement.updated_at, p_change.correlation_id);
END
$$;
CREATE FUNCTION public.request_guard_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text, OUT decision text, OUT status_code integer, OUT body text) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    SELECT b.decision, b.status_code, b.body INTO decision, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;
    IF decision = 'PROCEED' THEN
        PERFORM guarded_transaction_begin(p_guard);
    END IF;
END
$$;
CREATE FUNCTION public.request_guard_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval, p_guard text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM guarded_transaction_end(p_guard);
    PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, p_status_code, p_body, p_ttl);
END
$$;
CREATE FUNCTION public.request_guard_join(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text, OUT decision text, OUT status_code integer, OUT body text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    lock_timeout_of_user constant text := current_setting('lock_timeout');
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        decision := 'READ_ONLY';
        RETURN;
    END IF;
    SELECT b.decision, b.status_code, b.body INTO decision, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms, true) b;
    PERFORM set_config('lock_timeout', lock_timeout_of_user, true);
    IF decision = 'PROCEED' THEN
        PERFORM guarded_transaction_begin(p_guard);
    END IF;
END
$$;
CREATE FUNCTION public.schema_version() RETURNS text
    LANGUAGE sql STABLE
    AS $$
    SELECT coalesce(max(left(f.name, 4)) FILTER (WHERE f.name ~ '^\d{4}_'), 'baseline') || '-'
           || left(encode(sha256(convert_to(string_agg(f.line, E'\n' ORDER BY f.line COLLATE "C"), 'UTF8')), 'hex'), 12)
      FROM (SELECT m.name, m.name || ' ' || m.checksum AS line FROM schema_migrations m
             UNION ALL
            SELECT d.name, d.name || ' ' || d.checksum FROM schema_definitions d) AS f
$$;
CREATE FUNCTION public.settled_through(p_cap integer, p_grace interval, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    now     timestamptz := coalesce(p_now, now());
    writing timestamptz;
    stages  record;
    settled timestamptz;
BEGIN
    -- The owner sees the transactions of every login, unless it lacks a privilege. Then this role sees its own.
    writing := least(oldest_writing_transaction_of_all(), oldest_writing_transaction());
    SELECT least((SELECT e.starts_at FROM entitlements e
                   WHERE e.start_pending AND e.starts_at <= now ORDER BY e.starts_at LIMIT 1),
                 (SELECT e.expires_at + p_grace FROM entitlements e
                   WHERE e.status = 'ACTIVE' AND e.expires_at <= now - p_grace ORDER BY e.expires_at LIMIT 1)) AS times,
           outbox_oldest_unpublished(p_cap) AS outbox,
           outbox_oldest_unconfirmed(p_cap) AS stream,
           (SELECT n.occurred_at FROM notifications n
             WHERE n.next_retry_at IS NOT NULL ORDER BY n.occurred_at LIMIT 1) AS notifications
      INTO stages;
    settled := least(now, writing, stages.times, stages.outbox, stages.stream, stages.notifications);
    RETURN jsonb_build_object(
        'through', rfc3339(settled), 'age_seconds', extract(epoch FROM now - settled),
        'held_back_by', CASE WHEN settled < now THEN
            CASE settled WHEN stages.notifications THEN 'notifications' WHEN stages.stream THEN 'stream'
                         WHEN stages.outbox THEN 'outbox' WHEN stages.times THEN 'times' ELSE 'transactions' END END,
        'oldest', jsonb_build_object(
            'transactions', rfc3339(writing), 'times', rfc3339(stages.times), 'outbox', rfc3339(stages.outbox),
            'stream', rfc3339(stages.stream), 'notifications', rfc3339(stages.notifications)));
END
$$;
CREATE FUNCTION public.status_sample_take(p_late_after jsonb, p_grace interval, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
DECLARE
    now    timestamptz := coalesce(p_now, now());
    minute timestamptz := date_trunc('minute', coalesce(p_now, now()));
    status jsonb;
    settled jsonb;
    taken  status_samples;
BEGIN
    IF EXISTS (SELECT FROM status_samples s WHERE s.sampled_at = minute) THEN
        RETURN NULL;
    END IF;
    settled := settled_through(10000, p_grace, now);
    status := operations_status(10000, now);
    INSERT INTO status_samples AS s
    SELECT minute, (status#>>'{outbox,pending}')::bigint + (status#>>'{outbox,in_flight}')::bigint,
           (status#>>'{outbox,failed}')::bigint, (status#>>'{outbox,oldest_pending_seconds}')::double precision,
           (SELECT (w.result->>'consumer_lag')::bigint FROM worker_heartbeats w
             WHERE w.worker = 'bridge_events'
               AND coalesce((w.result->>'consumer_lag_at')::timestamptz, w.finished_at) 
                   > now - (p_late_after->>'bridge_events')::double precision / 2 * interval '1 second'),
           (status#>>'{notifications,pending}')::bigint + (status#>>'{notifications,processing}')::bigint,
           (status#>>'{dead_letters,open}')::bigint, (status#>>'{outbox,published_last_minute}')::bigint,
           (status#>>'{notifications,processed_last_minute}')::bigint,
           (status#>>'{notifications,sent_last_minute}')::bigint,
           (settled->>'through')::timestamptz, (settled->>'age_seconds')::double precision
        ON CONFLICT (sampled_at) DO NOTHING
    RETURNING s.* INTO taken;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN to_jsonb(taken) || jsonb_build_object(
        'leases_expired', (status#>>'{outbox,expired}')::bigint + (status#>>'{notifications,expired}')::bigint
                          + (status#>>'{commands,expired}')::bigint,
        'months_missing', greatest(0, 3 - (status#>>'{partitions,months_ahead}')::bigint),
        'workers_late', (SELECT count(*) FROM worker_heartbeats w
                          WHERE greatest(w.finished_at, w.resumed_at)
                                < now - (p_late_after->>w.worker)::double precision * interval '1 second'));
END
$$;
CREATE FUNCTION public.trace_changes(p_user_id text, p_sku text, p_purchase_id text, p_trace_id text, p_fingerprint text, p_event_id uuid, p_limit integer, p_correlation_id text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    event_time timestamptz;
    found      jsonb;
BEGIN
    IF p_limit > 100 OR num_nonnulls(p_user_id, p_purchase_id, p_trace_id, p_fingerprint, p_event_id,
                                      p_correlation_id) <> 1
       OR (p_user_id IS NULL) <> (p_sku IS NULL) THEN
        RAISE EXCEPTION 'one way to select, and at most 100 rows' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF substr(p_event_id::text, 15, 1) = '7' THEN
        event_time := to_timestamp(('x' || translate(left(p_event_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0);
    END IF;
    WITH selected AS (
        (SELECT a.* FROM entitlement_audit a WHERE a.user_id = p_user_id AND a.stock_keeping_unit = p_sku
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.purchase_id = p_purchase_id
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.trace_id = p_trace_id
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.correlation_id = p_correlation_id
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a WHERE a.detail->>'key_fingerprint' = p_fingerprint
          ORDER BY a.occurred_at DESC LIMIT p_limit)
        UNION ALL
        (SELECT a.* FROM entitlement_audit a
          WHERE a.operation_id = p_event_id
            AND a.occurred_at > event_time - interval '10 minutes'
            AND a.occurred_at < event_time + interval '10 minutes'
          LIMIT p_limit)),
    newest AS (SELECT s.* FROM selected s ORDER BY s.occurred_at DESC LIMIT p_limit)
    SELECT jsonb_agg(jsonb_build_object(
               'event_id', n.operation_id, 'at', rfc3339(n.occurred_at), 'caller', n.caller, 'operation', n.operation,
               'outcome', n.outcome, 'user_id', n.user_id, 'stock_keeping_unit', n.stock_keeping_unit,
               'trace_id', n.trace_id, 'correlation_id', n.correlation_id, 'detail', n.detail,
               'version', coalesce(n.version, (n.detail->>'version')::bigint), 'status', n.status,
               'purchase_id', n.purchase_id, 'source_address', host(n.source_address),
               'starts_at', rfc3339(n.starts_at), 'expires_at', rfc3339(n.expires_at))
             ORDER BY n.occurred_at DESC)
      INTO found FROM newest n;
    RETURN coalesce(found, '[]');
END
$$;
CREATE FUNCTION public.trace_stages(p_event_ids uuid[], p_requests jsonb, p_ttl interval, p_limit integer) RETURNS jsonb
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    AS $$
    SELECT jsonb_build_object(
        'outbox', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', o.event_id, 'event_type', o.event_type, 'status', o.status, 'attempts', o.attempt_count,
             'ready', o.ready, 'next_retry_at', rfc3339(o.next_retry_at), 'claimed_by', o.locked_by,
             'claimed_at', rfc3339(o.locked_at), 'lease_until', rfc3339(o.lease_until), 'error', o.last_error,
             'at', rfc3339(o.created_at), 'published_at', rfc3339(o.published_at),
             'stream_sequence', o.stream_sequence,
             'failed_at', rfc3339(coalesce(o.failed_at, (
                 SELECT u.found_at FROM outbox_unconfirmed u
                  WHERE u.event_id = o.event_id AND u.state = 'TOO_OLD' AND o.status = 'PUBLISHED'))),
             'discarded_at', rfc3339(o.discarded_at),
             'version', o.aggregate_version, 'trace_id', o.trace_id)), '[]')
           FROM outbox_events o WHERE o.event_id = ANY (p_event_ids)),
        'inbox', (SELECT coalesce(jsonb_agg(jsonb_build_object('event_id', p.event_id, 'at', rfc3339(p.processed_at))), '[]')
           FROM processed_events p WHERE p.event_id = ANY (p_event_ids)),
        'notifications', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', n.event_id, 'notification_id', n.notification_id, 'status', n.status,
             'attempts', n.attempt_count, 'next_retry_at', rfc3339(n.next_retry_at), 'claimed_by', n.locked_by,
             'lease_until', rfc3339(n.lease_until), 'error', n.last_error, 'at', rfc3339(n.created_at),
             'sent_at', rfc3339(n.sent_at), 'responses', n.responses, 'user_id', n.user_id, 'stock_keeping_unit', n.stock_keeping_unit)), '[]')
           FROM notifications n WHERE n.event_id = ANY (p_event_ids)),
        'dead_notifications', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', d.event_id, 'kind', 'notification', 'dead_letter_id', d.notification_id, 'state', d.status,
             'attempts', d.attempt_count, 'error', d.last_error, 'at', rfc3339(d.failed_at),
             'closed_at', rfc3339(d.closed_at))), '[]')
           FROM notification_dlq d WHERE d.event_id = ANY (p_event_ids)),
        'dead_messages', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', m.event_id, 'kind', 'nats', 'dead_letter_id', m.dead_letter_id, 'state', m.status,
             'advisory', m.kind, 'deliveries', m.deliveries, 'error', m.reason, 'stream', m.stream,
             'stream_sequence', m.stream_seq, 'consumer', m.consumer, 'redrives', m.redrive_count,
             'at', rfc3339(m.advised_at), 'closed_at', rfc3339(m.closed_at))), '[]')
           FROM (SELECT * FROM notification_nats_dlq d WHERE d.event_id = ANY (p_event_ids)
                  ORDER BY d.advised_at LIMIT p_limit) AS m),
        'responses', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', r.event_id, 'route', k.route, 'status_code', k.status_code, 'body', k.response_body,
             'at', rfc3339(k.created_at), 'expires_at', rfc3339(k.expires_at))), '[]')
           FROM jsonb_to_recordset(p_requests)
                AS r (event_id uuid, caller text, route text, fingerprint text, at timestamptz)
          CROSS JOIN LATERAL (
                SELECT i.route, i.status_code, i.response_body, i.created_at, i.expires_at FROM idempotency_keys i
                 WHERE i.expires_at > r.at + p_ttl - interval '10 seconds' AND i.expires_at <= r.at + p_ttl
                   AND i.caller = r.caller AND i.route = r.route
                   AND left(encode(sha256(convert_to(i.idempotency_key, 'UTF8')), 'hex'), 12) = r.fingerprint
                 LIMIT 1) AS k))
$$;
CREATE FUNCTION public.user_entitlements_project(p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamp with time zone[], p_starts_at timestamp with time zone[], p_expires_at timestamp with time zone[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    changed integer;
BEGIN
    INSERT INTO user_entitlements AS known
           (user_id, stock_keeping_unit, status, version, changed_at, starts_at, expires_at)
    SELECT DISTINCT ON (e.user_id COLLATE "C", e.sku COLLATE "C")
           e.user_id, e.sku, entitlement_status_after(e.event_type), e.version, e.occurred_at, e.starts_at, e.expires_at
      FROM unnest(p_user_ids, p_skus, p_event_types, p_versions, p_times, p_starts_at, p_expires_at)
           AS e (user_id, sku, event_type, version, occurred_at, starts_at, expires_at)
     ORDER BY e.user_id COLLATE "C", e.sku COLLATE "C", e.version DESC
        ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
       SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at,
           starts_at = EXCLUDED.starts_at, expires_at = EXCLUDED.expires_at
     WHERE known.version < EXCLUDED.version;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;
CREATE TABLE public.user_entitlements (
    user_id text NOT NULL COLLATE pg_catalog."C",
    stock_keeping_unit text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL,
    version bigint NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    starts_at timestamp with time zone,
    expires_at timestamp with time zone,
    CONSTRAINT user_entitlements_sku_length CHECK (((char_length(stock_keeping_unit) >= 1) AND (char_length(stock_keeping_unit) <= 128))),
    CONSTRAINT user_entitlements_status CHECK ((status = ANY (ARRAY['ACTIVE'::text, 'REVOKED'::text, 'EXPIRED'::text]))),
    CONSTRAINT user_entitlements_user_id_length CHECK (((char_length(user_id) >= 1) AND (char_length(user_id) <= 128))),
    CONSTRAINT user_entitlements_version CHECK ((version >= 1))
)
WITH (fillfactor='80');
CREATE FUNCTION public.user_summaries_apply(p_before public.user_entitlements[], p_after public.user_entitlements[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM user_summaries_lock();
    INSERT INTO user_summaries (user_id, active, revoked, expired)
    SELECT DISTINCT user_id, 0, 0, 0 FROM unnest(p_after)
        ON CONFLICT (user_id) DO NOTHING;
    WITH changed AS (
        SELECT 1 AS sign, a.* FROM unnest(p_after) AS a
        UNION ALL
        SELECT -1, b.* FROM unnest(p_before) AS b),
    counted AS (
        SELECT user_id,
               coalesce(sum(sign) FILTER (WHERE status = 'ACTIVE'), 0) AS active,
               coalesce(sum(sign) FILTER (WHERE status = 'REVOKED'), 0) AS revoked,
               coalesce(sum(sign) FILTER (WHERE status = 'EXPIRED'), 0) AS expired,
               array_agg(stock_keeping_unit) FILTER (WHERE sign < 0) AS replaced
          FROM changed GROUP BY user_id),
    newest AS (
        SELECT DISTINCT ON (user_id) * FROM unnest(p_after)
         ORDER BY user_id, changed_at DESC, version DESC, stock_keeping_unit)
    UPDATE user_summaries s
       SET active = s.active + c.active,
           revoked = s.revoked + c.revoked,
           expired = s.expired + c.expired,
           (last_stock_keeping_unit, last_status, last_version, last_changed_at) = (
             SELECT stock_keeping_unit, status, version, changed_at
               FROM (
                 SELECT n.stock_keeping_unit, n.status, n.version, n.changed_at
                 UNION ALL
                 SELECT s.last_stock_keeping_unit, s.last_status, s.last_version, s.last_changed_at
                  WHERE s.last_stock_keeping_unit <> ALL (c.replaced) IS NOT FALSE
                 UNION ALL
                 (SELECT r.stock_keeping_unit, r.status, r.version, r.changed_at
                    FROM user_entitlements r
                   WHERE r.user_id = s.user_id AND s.last_stock_keeping_unit = ANY (c.replaced)
                     AND (n.changed_at, n.version) > (s.last_changed_at, s.last_version) IS NOT TRUE
                   ORDER BY r.changed_at DESC, r.version DESC, r.stock_keeping_unit LIMIT 1)) AS candidate
              WHERE stock_keeping_unit IS NOT NULL
              ORDER BY changed_at DESC, version DESC, stock_keeping_unit LIMIT 1)
      FROM counted c LEFT JOIN newest n USING (user_id)
     WHERE s.user_id = c.user_id;
END
$$;
CREATE FUNCTION public.user_summaries_lock() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    -- Two integers are a separate key space from the keys of single requests, which are one bigint.
    PERFORM pg_advisory_xact_lock(hashtext('grantwire'), hashtext('user_summaries'));
END
$$;
CREATE FUNCTION public.user_summaries_maintain() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    before user_entitlements[] := '{}';
    after  user_entitlements[] := '{}';
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM user_summaries_lock();
        DELETE FROM user_summaries;
        RETURN NULL;
    END IF;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN
        before := ARRAY(SELECT ROW (b.*)::user_entitlements FROM rows_before b);
    END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        after := ARRAY(SELECT ROW (a.*)::user_entitlements FROM rows_after a);
    END IF;
    IF cardinality(before) + cardinality(after) > 0 THEN
        PERFORM user_summaries_apply(before, after);
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.user_summaries_repair() RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    -- Without the lock, because this reads all rows.
    suspects text[] := ARRAY(SELECT user_id FROM user_summaries_differences);
    repaired integer := 0;
BEGIN
    IF cardinality(suspects) > 0 THEN
        PERFORM user_summaries_lock();
        INSERT INTO user_summaries AS s
               (user_id, active, revoked, expired, last_stock_keeping_unit, last_status, last_version, last_changed_at)
        SELECT u.user_id, coalesce(e.active, 0), coalesce(e.revoked, 0), coalesce(e.expired, 0),
               e.last_stock_keeping_unit, e.last_status, e.last_version, e.last_changed_at
          FROM unnest(suspects) AS u (user_id) LEFT JOIN user_summaries_expected e USING (user_id)
            ON CONFLICT (user_id) DO UPDATE
           SET (active, revoked, expired, last_stock_keeping_unit, last_status, last_version, last_changed_at)
             = (EXCLUDED.active, EXCLUDED.revoked, EXCLUDED.expired, EXCLUDED.last_stock_keeping_unit,
                EXCLUDED.last_status, EXCLUDED.last_version, EXCLUDED.last_changed_at)
         WHERE s IS DISTINCT FROM EXCLUDED;
        GET DIAGNOSTICS repaired = ROW_COUNT;
    END IF;
    RETURN repaired;
END
$$;
CREATE TABLE public.api_clients (
    client_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    scopes text[] NOT NULL,
    token_hash text NOT NULL COLLATE pg_catalog."C",
    previous_hash text COLLATE pg_catalog."C",
    previous_until timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    rotated_at timestamp with time zone,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    rate_limit integer,
    burst_limit integer,
    created_by text COLLATE pg_catalog."C",
    CONSTRAINT api_clients_burst_limit CHECK (((burst_limit >= 1) AND (burst_limit <= 1000000))),
    CONSTRAINT api_clients_creator CHECK ((created_by <> client_id)),
    CONSTRAINT api_clients_hash_form CHECK ((token_hash ~ '^[0-9a-f]{64}$'::text)),
    CONSTRAINT api_clients_id_form CHECK ((client_id ~ '^[a-z0-9]{12}$'::text)),
    CONSTRAINT api_clients_lifetime CHECK (((expires_at IS NULL) OR (expires_at > created_at))),
    CONSTRAINT api_clients_name_length CHECK (((char_length(name) >= 1) AND (char_length(name) <= 64))),
    CONSTRAINT api_clients_previous CHECK ((((previous_hash IS NULL) = (previous_until IS NULL)) AND COALESCE((previous_hash ~ '^[0-9a-f]{64}$'::text), true))),
    CONSTRAINT api_clients_rate_limit CHECK (((rate_limit >= 1) AND (rate_limit <= 1000000))),
    CONSTRAINT api_clients_scopes CHECK ((((cardinality(scopes) >= 1) AND (cardinality(scopes) <= 8)) AND (scopes <@ ARRAY['entitlements:write'::text, 'entitlements:read'::text, 'notifications:read'::text, 'changes:read'::text, 'ops:read'::text, 'ops:write'::text, 'clients:read'::text, 'clients:write'::text])))
);
COMMENT ON TABLE public.api_clients IS 'Service clients of the API. Revoked clients stay, because the audit refers to them.';
CREATE TABLE public.audit_retention (
    single boolean DEFAULT true NOT NULL,
    keep_months integer NOT NULL,
    CONSTRAINT audit_retention_months CHECK ((keep_months >= 1)),
    CONSTRAINT audit_retention_single CHECK (single)
);
COMMENT ON TABLE public.audit_retention IS 'Written by migrations, as the schema owner. The role of the functions cannot shorten the retention of the audit.';
CREATE UNLOGGED TABLE public.change_feed_waiters (
    waiter_id uuid NOT NULL,
    client_id text NOT NULL COLLATE pg_catalog."C",
    until timestamp with time zone NOT NULL
);
CREATE UNLOGGED TABLE public.client_buckets (
    client_id text NOT NULL COLLATE pg_catalog."C",
    tokens double precision NOT NULL,
    filled_at timestamp with time zone NOT NULL,
    CONSTRAINT client_buckets_tokens CHECK ((tokens >= (0)::double precision))
)
WITH (fillfactor='20');
COMMENT ON TABLE public.client_buckets IS 'Token buckets of the callers. Deleting a row fills the bucket of that caller.';
CREATE TABLE public.notification_dlq (
    notification_id uuid NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    user_id text NOT NULL COLLATE pg_catalog."C",
    stock_keeping_unit text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    payload jsonb NOT NULL,
    trace_id text,
    attempt_count integer NOT NULL,
    last_error text,
    failed_at timestamp with time zone DEFAULT now() NOT NULL,
    status text DEFAULT 'OPEN'::text NOT NULL,
    closed_at timestamp with time zone,
    CONSTRAINT notification_dlq_closed CHECK (((status = 'OPEN'::text) = (closed_at IS NULL))),
    CONSTRAINT notification_dlq_status CHECK ((status = ANY (ARRAY['OPEN'::text, 'REDRIVEN'::text, 'DISCARDED'::text])))
);
CREATE TABLE public.notification_nats_dlq (
    dead_letter_id uuid NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    consumer text NOT NULL COLLATE pg_catalog."C",
    stream_seq bigint NOT NULL,
    kind text NOT NULL,
    deliveries integer NOT NULL,
    reason text,
    subject text,
    headers jsonb,
    payload bytea,
    event_id uuid,
    user_id text COLLATE pg_catalog."C",
    stock_keeping_unit text COLLATE pg_catalog."C",
    event_time timestamp with time zone,
    message_time timestamp with time zone,
    advised_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone DEFAULT now() NOT NULL,
    status text DEFAULT 'OPEN'::text NOT NULL,
    redrive_count integer DEFAULT 0 NOT NULL,
    redrive_id text COLLATE pg_catalog."C",
    forced boolean DEFAULT false NOT NULL,
    closed_at timestamp with time zone,
    origin uuid,
    redriven_at timestamp with time zone,
    redriven_sequence bigint,
    redrive_confirmed boolean DEFAULT false NOT NULL,
    CONSTRAINT notification_nats_dlq_closed CHECK (((status = 'OPEN'::text) = (closed_at IS NULL))),
    CONSTRAINT notification_nats_dlq_copy CHECK ((((payload IS NULL) = (subject IS NULL)) AND ((payload IS NULL) = (message_time IS NULL)))),
    CONSTRAINT notification_nats_dlq_kind CHECK ((kind = ANY (ARRAY['MAX_DELIVERIES'::text, 'MSG_TERMINATED'::text]))),
    CONSTRAINT notification_nats_dlq_redriven CHECK (((status <> 'REDRIVEN'::text) OR (redrive_id IS NOT NULL))),
    CONSTRAINT notification_nats_dlq_redrives CHECK ((redrive_count >= 0)),
    CONSTRAINT notification_nats_dlq_sku_length CHECK ((char_length(stock_keeping_unit) <= 128)),
    CONSTRAINT notification_nats_dlq_status CHECK ((status = ANY (ARRAY['OPEN'::text, 'REDRIVEN'::text, 'DISCARDED'::text, 'PROCESSED'::text]))),
    CONSTRAINT notification_nats_dlq_user_id_length CHECK ((char_length(user_id) <= 128))
);
COMMENT ON COLUMN public.notification_nats_dlq.payload IS 'Content of the message; NULL if the stream no longer had it when the advisory was recorded.';
COMMENT ON COLUMN public.notification_nats_dlq.user_id IS 'The user that the message names; NULL if it is not an event.';
COMMENT ON COLUMN public.notification_nats_dlq.event_time IS 'When the event occurred, according to its headers or the stream. An old event is redriven only with force (Q2).';
COMMENT ON COLUMN public.notification_nats_dlq.status IS 'PROCESSED: JetStream stopped delivering the message, but a late delivery was recorded in the inbox.';
COMMENT ON COLUMN public.notification_nats_dlq.redrive_count IS 'Number of the redrive; 0 before. If an event has several dead letters, each redrive has the next number.';
COMMENT ON COLUMN public.notification_nats_dlq.redrive_id IS 'Nats-Msg-Id of the redrive, committed before the first publish so that a retry after a crash uses the same id.';
COMMENT ON COLUMN public.notification_nats_dlq.forced IS 'Whether an operator has redriven this message with force although the audit no longer has its event (G1). Committed together with the number of the redrive.';
COMMENT ON COLUMN public.notification_nats_dlq.origin IS 'The dead letter whose redrive published this message.';
COMMENT ON COLUMN public.notification_nats_dlq.redriven_sequence IS 'The sequence number of the redriven message in the stream; NULL until JetStream has stored it.';
COMMENT ON COLUMN public.notification_nats_dlq.redrive_confirmed IS 'Whether the inbox has the event of a redriven dead letter, or another dead letter of it took its place (W1).';
CREATE TABLE public.outbox_events (
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    aggregate_key text NOT NULL COLLATE pg_catalog."C",
    aggregate_version bigint NOT NULL,
    payload jsonb NOT NULL,
    trace_id text,
    status text DEFAULT 'PENDING'::text NOT NULL,
    ready boolean NOT NULL,
    attempt_count integer DEFAULT 0 NOT NULL,
    next_retry_at timestamp with time zone DEFAULT now() NOT NULL,
    locked_by text,
    locked_at timestamp with time zone,
    lease_until timestamp with time zone,
    last_error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    published_at timestamp with time zone,
    discarded_at timestamp with time zone,
    failed_at timestamp with time zone,
    stream_sequence bigint,
    republication integer,
    CONSTRAINT outbox_events_attempts CHECK ((attempt_count >= 0)),
    CONSTRAINT outbox_events_discarded CHECK (((status = 'DISCARDED'::text) = (discarded_at IS NOT NULL))),
    CONSTRAINT outbox_events_leased CHECK (((status <> 'IN_FLIGHT'::text) OR ((locked_by IS NOT NULL) AND (locked_at IS NOT NULL) AND (lease_until IS NOT NULL)))),
    CONSTRAINT outbox_events_published CHECK (((status = 'PUBLISHED'::text) = (published_at IS NOT NULL))),
    CONSTRAINT outbox_events_ready CHECK (((NOT ready) OR (status = ANY (ARRAY['PENDING'::text, 'IN_FLIGHT'::text])))),
    CONSTRAINT outbox_events_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'IN_FLIGHT'::text, 'PUBLISHED'::text, 'FAILED'::text, 'DISCARDED'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.02');
COMMENT ON COLUMN public.outbox_events.ready IS 'Whether this event is the head of its aggregate and not FAILED. outbox_enqueue and outbox_promote maintain it.';
COMMENT ON COLUMN public.outbox_events.failed_at IS 'When the event became FAILED; NULL if it is not FAILED. A trigger sets it, and a claim stays a HOT update.';
COMMENT ON COLUMN public.outbox_events.stream_sequence IS 'The sequence number of the message in the stream; NULL until it is published.';
COMMENT ON COLUMN public.outbox_events.republication IS 'How often the event was put back after a loss of the stream; part of its Nats-Msg-Id. NULL: never.';
CREATE VIEW public.closed_dead_letters AS
 SELECT kind,
    dead_letter_id,
    event_type,
    user_id,
    error,
    since,
    event_time,
    has_copy,
    event_id,
    stock_keeping_unit,
    public.dead_letter_cause(error) AS cause,
    state,
    closed_at
   FROM ( SELECT 'outbox'::text AS kind,
            outbox_events.event_id AS dead_letter_id,
            outbox_events.event_type,
            (outbox_events.payload ->> 'user_id'::text) AS user_id,
            outbox_events.last_error AS error,
            outbox_events.created_at AS since,
            outbox_events.created_at AS event_time,
            true AS has_copy,
            outbox_events.event_id,
            (outbox_events.payload ->> 'stock_keeping_unit'::text) AS stock_keeping_unit,
            outbox_events.status AS state,
            outbox_events.discarded_at AS closed_at
           FROM public.outbox_events
          WHERE (outbox_events.discarded_at IS NOT NULL)
        UNION ALL
         SELECT 'notification'::text,
            notification_dlq.notification_id,
            notification_dlq.event_type,
            notification_dlq.user_id,
            notification_dlq.last_error,
            notification_dlq.failed_at,
            NULL::timestamp with time zone,
            true,
            notification_dlq.event_id,
            notification_dlq.stock_keeping_unit,
            notification_dlq.status,
            notification_dlq.closed_at
           FROM public.notification_dlq
          WHERE (notification_dlq.closed_at IS NOT NULL)
        UNION ALL
         SELECT 'nats'::text,
            notification_nats_dlq.dead_letter_id,
            (notification_nats_dlq.headers ->> 'event_type'::text),
            notification_nats_dlq.user_id,
            public.nats_dead_letter_error(notification_nats_dlq.kind, notification_nats_dlq.deliveries, notification_nats_dlq.reason) AS nats_dead_letter_error,
            notification_nats_dlq.advised_at,
            notification_nats_dlq.event_time,
            (notification_nats_dlq.payload IS NOT NULL),
            notification_nats_dlq.event_id,
            notification_nats_dlq.stock_keeping_unit,
            notification_nats_dlq.status,
            notification_nats_dlq.closed_at
           FROM public.notification_nats_dlq
          WHERE (notification_nats_dlq.closed_at IS NOT NULL)) closed;
CREATE TABLE public.outbox_unconfirmed (
    event_id uuid NOT NULL,
    state text NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    stream_sequence bigint,
    found_at timestamp with time zone NOT NULL,
    passed_at timestamp with time zone,
    examined_at timestamp with time zone,
    CONSTRAINT outbox_unconfirmed_state CHECK ((state = ANY (ARRAY['WAITING'::text, 'REPUBLISHED'::text, 'TOO_OLD'::text])))
);
COMMENT ON COLUMN public.outbox_unconfirmed.state IS 'WAITING: for the bridge. REPUBLISHED: put back, and not in the inbox yet. TOO_OLD: lost, but the inbox may have forgotten it: a dead letter, about which a person decides.';
COMMENT ON COLUMN public.outbox_unconfirmed.changed_at IS 'created_at of the event: the time of the change.';
COMMENT ON COLUMN public.outbox_unconfirmed.passed_at IS 'When a check first saw that the stream has the message, and its consumer will not deliver it again.';
CREATE VIEW public.dead_letters AS
 SELECT kind,
    dead_letter_id,
    event_type,
    user_id,
    error,
    since,
    event_time,
    has_copy,
    event_id,
    stock_keeping_unit,
    public.dead_letter_cause(error) AS cause
   FROM ( SELECT 'outbox'::text AS kind,
            outbox_events.event_id AS dead_letter_id,
            outbox_events.event_type,
            (outbox_events.payload ->> 'user_id'::text) AS user_id,
            outbox_events.last_error AS error,
            outbox_events.failed_at AS since,
            outbox_events.created_at AS event_time,
            true AS has_copy,
            outbox_events.event_id,
            (outbox_events.payload ->> 'stock_keeping_unit'::text) AS stock_keeping_unit
           FROM public.outbox_events
          WHERE ((outbox_events.failed_at IS NOT NULL) AND (outbox_events.status = 'FAILED'::text) AND (outbox_events.published_at IS NULL) AND (outbox_events.discarded_at IS NULL))
        UNION ALL
         SELECT 'outbox'::text,
            o.event_id,
            o.event_type,
            (o.payload ->> 'user_id'::text),
            o.last_error,
            u.found_at,
            o.created_at,
            true,
            o.event_id,
            (o.payload ->> 'stock_keeping_unit'::text)
           FROM (public.outbox_unconfirmed u
             JOIN public.outbox_events o ON ((o.event_id = u.event_id)))
          WHERE ((u.state = 'TOO_OLD'::text) AND (o.status = 'PUBLISHED'::text))
        UNION ALL
         SELECT 'notification'::text,
            notification_dlq.notification_id,
            notification_dlq.event_type,
            notification_dlq.user_id,
            notification_dlq.last_error,
            notification_dlq.failed_at,
            NULL::timestamp with time zone,
            true,
            notification_dlq.event_id,
            notification_dlq.stock_keeping_unit
           FROM public.notification_dlq
          WHERE (notification_dlq.closed_at IS NULL)
        UNION ALL
         SELECT 'nats'::text,
            notification_nats_dlq.dead_letter_id,
            (notification_nats_dlq.headers ->> 'event_type'::text),
            notification_nats_dlq.user_id,
            public.nats_dead_letter_error(notification_nats_dlq.kind, notification_nats_dlq.deliveries, notification_nats_dlq.reason) AS nats_dead_letter_error,
            notification_nats_dlq.advised_at,
            notification_nats_dlq.event_time,
            (notification_nats_dlq.payload IS NOT NULL),
            notification_nats_dlq.event_id,
            notification_nats_dlq.stock_keeping_unit
           FROM public.notification_nats_dlq
          WHERE (notification_nats_dlq.status = 'OPEN'::text)) open_dead_letters;
CREATE TABLE public.distributed_locks (
    lock_key text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    CONSTRAINT distributed_locks_key_length CHECK (((char_length(lock_key) >= 1) AND (char_length(lock_key) <= 256))),
    CONSTRAINT distributed_locks_owner_length CHECK (((char_length(owner) >= 1) AND (char_length(owner) <= 256)))
);
CREATE TABLE public.entitlement_audit (
    operation_id uuid NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    caller text NOT NULL,
    operation text NOT NULL,
    outcome text NOT NULL,
    user_id text NOT NULL COLLATE pg_catalog."C",
    stock_keeping_unit text NOT NULL COLLATE pg_catalog."C",
    trace_id text,
    detail jsonb NOT NULL,
    version bigint,
    status text,
    purchase_id text,
    source_address inet,
    transaction_id xid8 DEFAULT pg_current_xact_id(),
    starts_at timestamp with time zone,
    expires_at timestamp with time zone,
    changed_at timestamp with time zone,
    correlation_id text,
    CONSTRAINT entitlement_audit_applied CHECK ((num_nulls(version, status, changed_at) =
CASE outcome
    WHEN 'APPLIED'::text THEN 0
    ELSE 3
END)),
    CONSTRAINT entitlement_audit_caller_length CHECK (((char_length(caller) >= 1) AND (char_length(caller) <= 128))),
    CONSTRAINT entitlement_audit_correlation_id_length CHECK (((char_length(correlation_id) >= 1) AND (char_length(correlation_id) <= 128))),
    CONSTRAINT entitlement_audit_detail_length CHECK ((octet_length((detail)::text) <= 8192)),
    CONSTRAINT entitlement_audit_operation CHECK ((operation = ANY (ARRAY['GRANT'::text, 'REVOKE'::text, 'EXTEND'::text, 'START'::text, 'EXPIRING'::text, 'EXPIRE'::text]))),
    CONSTRAINT entitlement_audit_outcome CHECK ((outcome = ANY (ARRAY['APPLIED'::text, 'ENTITLEMENT_STATE_CONFLICT'::text, 'IDEMPOTENCY_KEY_CONFLICT'::text]))),
    CONSTRAINT entitlement_audit_purchase_id_length CHECK (((char_length(purchase_id) >= 1) AND (char_length(purchase_id) <= 128))),
    CONSTRAINT entitlement_audit_source_address CHECK ((masklen(source_address) =
CASE family(source_address)
    WHEN 4 THEN 32
    ELSE 128
END)),
    CONSTRAINT entitlement_audit_status CHECK ((status = ANY (ARRAY['ACTIVE'::text, 'REVOKED'::text, 'EXPIRED'::text]))),
    CONSTRAINT entitlement_audit_version CHECK ((version >= 1))
)
PARTITION BY RANGE (occurred_at);
COMMENT ON COLUMN public.entitlement_audit.operation_id IS 'Equal to the event_id of the event that the operation caused, if it caused one.';
COMMENT ON COLUMN public.entitlement_audit.version IS 'The version of the entitlement after the change; NULL if the operation was refused.';
COMMENT ON COLUMN public.entitlement_audit.status IS 'The status of the entitlement after the change; NULL if the operation was refused.';
COMMENT ON COLUMN public.entitlement_audit.source_address IS 'The address that API Gateway received the request from; NULL if it named none.';
COMMENT ON COLUMN public.entitlement_audit.transaction_id IS 'The transaction that wrote the row. A dump that is restored to another cluster keeps the ids of the old one, until installation_renew removes them.';
COMMENT ON COLUMN public.entitlement_audit.starts_at IS 'The start of the entitlement after the change, if it has one.';
COMMENT ON COLUMN public.entitlement_audit.expires_at IS 'The end of the entitlement after the change, if it has one.';
COMMENT ON COLUMN public.entitlement_audit.changed_at IS 'updated_at of the entitlement after the change; NULL if the operation was refused. It is a moment before occurred_at, at which the row was written.';
COMMENT ON COLUMN public.entitlement_audit.correlation_id IS 'The id that API Gateway gave the request; NULL for time events.';
CREATE TABLE public.entitlement_audit_default (
    operation_id uuid CONSTRAINT entitlement_audit_operation_id_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT entitlement_audit_occurred_at_not_null NOT NULL,
    caller text CONSTRAINT entitlement_audit_caller_not_null NOT NULL,
    operation text CONSTRAINT entitlement_audit_operation_not_null NOT NULL,
    outcome text CONSTRAINT entitlement_audit_outcome_not_null NOT NULL,
    user_id text CONSTRAINT entitlement_audit_user_id_not_null NOT NULL COLLATE pg_catalog."C",
    stock_keeping_unit text CONSTRAINT entitlement_audit_stock_keeping_unit_not_null NOT NULL COLLATE pg_catalog."C",
    trace_id text,
    detail jsonb CONSTRAINT entitlement_audit_detail_not_null NOT NULL,
    version bigint,
    status text,
    purchase_id text,
    source_address inet,
    transaction_id xid8 DEFAULT pg_current_xact_id(),
    starts_at timestamp with time zone,
    expires_at timestamp with time zone,
    changed_at timestamp with time zone,
    correlation_id text,
    CONSTRAINT entitlement_audit_applied CHECK ((num_nulls(version, status, changed_at) =
CASE outcome
    WHEN 'APPLIED'::text THEN 0
    ELSE 3
END)),
    CONSTRAINT entitlement_audit_caller_length CHECK (((char_length(caller) >= 1) AND (char_length(caller) <= 128))),
    CONSTRAINT entitlement_audit_correlation_id_length CHECK (((char_length(correlation_id) >= 1) AND (char_length(correlation_id) <= 128))),
    CONSTRAINT entitlement_audit_detail_length CHECK ((octet_length((detail)::text) <= 8192)),
    CONSTRAINT entitlement_audit_operation CHECK ((operation = ANY (ARRAY['GRANT'::text, 'REVOKE'::text, 'EXTEND'::text, 'START'::text, 'EXPIRING'::text, 'EXPIRE'::text]))),
    CONSTRAINT entitlement_audit_outcome CHECK ((outcome = ANY (ARRAY['APPLIED'::text, 'ENTITLEMENT_STATE_CONFLICT'::text, 'IDEMPOTENCY_KEY_CONFLICT'::text]))),
    CONSTRAINT entitlement_audit_purchase_id_length CHECK (((char_length(purchase_id) >= 1) AND (char_length(purchase_id) <= 128))),
    CONSTRAINT entitlement_audit_source_address CHECK ((masklen(source_address) =
CASE family(source_address)
    WHEN 4 THEN 32
    ELSE 128
END)),
    CONSTRAINT entitlement_audit_status CHECK ((status = ANY (ARRAY['ACTIVE'::text, 'REVOKED'::text, 'EXPIRED'::text]))),
    CONSTRAINT entitlement_audit_version CHECK ((version >= 1))
);
CREATE UNLOGGED TABLE public.guarded_transactions (
    guard text NOT NULL COLLATE pg_catalog."C"
);
COMMENT ON TABLE public.guarded_transactions IS 'The open transactions of guards. A row is never committed.';
CREATE SEQUENCE public.idempotency_fences
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE public.idempotency_keys (
    caller text NOT NULL COLLATE pg_catalog."C",
    route text NOT NULL COLLATE pg_catalog."C",
    idempotency_key text NOT NULL COLLATE pg_catalog."C",
    request_hash text NOT NULL COLLATE pg_catalog."C",
    status_code integer NOT NULL,
    response_body text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT idempotency_keys_caller_length CHECK (((char_length(caller) >= 1) AND (char_length(caller) <= 128))),
    CONSTRAINT idempotency_keys_key_length CHECK (((char_length(idempotency_key) >= 1) AND (char_length(idempotency_key) <= 255))),
    CONSTRAINT idempotency_keys_lifetime CHECK ((expires_at > created_at)),
    CONSTRAINT idempotency_keys_stored_status CHECK ((((status_code >= 200) AND (status_code <= 399)) OR ((status_code >= 401) AND (status_code <= 499))))
);
COMMENT ON TABLE public.idempotency_keys IS 'One row for each request with a stored response. A key is scoped by caller and route (I7).';
COMMENT ON COLUMN public.idempotency_keys.request_hash IS 'Version of the canonical form and SHA-256 of the canonical request, as "v1:<hex>".';
CREATE TABLE public.installation (
    single boolean DEFAULT true NOT NULL,
    installation_id uuid DEFAULT gen_random_uuid() NOT NULL,
    dropped_in text,
    dropped_transaction_id xid8,
    dropped_occurred_at timestamp with time zone,
    dropped_operation_id uuid,
    CONSTRAINT installation_dropped CHECK ((num_nulls(dropped_in, dropped_transaction_id, dropped_occurred_at, dropped_operation_id) = ANY (ARRAY[0, 4]))),
    CONSTRAINT installation_single CHECK (single)
);
COMMENT ON TABLE public.installation IS 'Exactly one row. Only the schema owner changes it.';
CREATE TABLE public.key_conflicts (
    caller text NOT NULL COLLATE pg_catalog."C",
    route text NOT NULL COLLATE pg_catalog."C",
    key_hash text NOT NULL COLLATE pg_catalog."C",
    day date NOT NULL,
    operation_id uuid NOT NULL,
    conflicts bigint DEFAULT 1 NOT NULL,
    first_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT key_conflicts_count CHECK ((conflicts >= 1)),
    CONSTRAINT key_conflicts_hash_form CHECK ((key_hash ~ '^[0-9a-f]{64}$'::text))
);
CREATE TABLE public.notifications (
    notification_id uuid NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    user_id text NOT NULL COLLATE pg_catalog."C",
    stock_keeping_unit text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    payload jsonb NOT NULL,
    trace_id text,
    status text DEFAULT 'PENDING'::text NOT NULL,
    attempt_count integer DEFAULT 0 NOT NULL,
    next_retry_at timestamp with time zone DEFAULT now(),
    locked_by text,
    locked_at timestamp with time zone,
    lease_until timestamp with time zone,
    last_error text,
    responses jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    sent_at timestamp with time zone,
    CONSTRAINT notifications_attempts CHECK ((attempt_count >= 0)),
    CONSTRAINT notifications_event_type CHECK ((public.entitlement_status_after(event_type) IS NOT NULL)),
    CONSTRAINT notifications_leased CHECK (((status = 'PROCESSING'::text) = ((locked_by IS NOT NULL) AND (locked_at IS NOT NULL) AND (lease_until IS NOT NULL)))),
    CONSTRAINT notifications_open CHECK (((status = ANY (ARRAY['PENDING'::text, 'PROCESSING'::text])) = (next_retry_at IS NOT NULL))),
    CONSTRAINT notifications_payload CHECK ((jsonb_typeof(payload) = 'object'::text)),
    CONSTRAINT notifications_sent CHECK (((status = 'SENT'::text) = (sent_at IS NOT NULL))),
    CONSTRAINT notifications_sku_length CHECK (((char_length(stock_keeping_unit) >= 1) AND (char_length(stock_keeping_unit) <= 128))),
    CONSTRAINT notifications_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'PROCESSING'::text, 'SENT'::text, 'FAILED'::text]))),
    CONSTRAINT notifications_user_id_length CHECK (((char_length(user_id) >= 1) AND (char_length(user_id) <= 128))),
    CONSTRAINT notifications_version CHECK ((version >= 1))
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.02');
COMMENT ON COLUMN public.notifications.responses IS 'The last 20 attempts to send it: an array of objects with at, the time, and response; NULL if there was none.';
CREATE TABLE public.operator_actions (
    action_id uuid NOT NULL,
    batch integer NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    source text NOT NULL,
    action text NOT NULL,
    kind text NOT NULL,
    selection jsonb NOT NULL,
    dry_run boolean NOT NULL,
    client_id text COLLATE pg_catalog."C",
    dead_letter_ids uuid[],
    count integer NOT NULL,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT operator_actions_action CHECK (
CASE kind
    WHEN 'client'::text THEN (action = ANY (ARRAY['create'::text, 'rotate'::text, 'limits'::text, 'revoke'::text]))
    WHEN 'read_model'::text THEN (action = 'rebuild'::text)
    WHEN 'outbox'::text THEN (action = ANY (ARRAY['redrive'::text, 'discard'::text]))
    WHEN 'notification'::text THEN (action = ANY (ARRAY['redrive'::text, 'discard'::text]))
    WHEN 'nats'::text THEN (action = ANY (ARRAY['redrive'::text, 'discard'::text]))
    ELSE false
END),
    CONSTRAINT operator_actions_actor CHECK (((char_length(actor) >= 1) AND (char_length(actor) <= 500))),
    CONSTRAINT operator_actions_client CHECK (((kind = 'client'::text) = (client_id IS NOT NULL))),
    CONSTRAINT operator_actions_count CHECK (((count >= 0) AND ((dead_letter_ids IS NULL) OR (count = cardinality(dead_letter_ids))))),
    CONSTRAINT operator_actions_dead_letters CHECK (((kind = ANY (ARRAY['outbox'::text, 'notification'::text, 'nats'::text])) = (dead_letter_ids IS NOT NULL))),
    CONSTRAINT operator_actions_reason CHECK (((char_length(reason) >= 1) AND (char_length(reason) <= 500))),
    CONSTRAINT operator_actions_source CHECK (((char_length(source) >= 1) AND (char_length(source) <= 500)))
);
COMMENT ON TABLE public.operator_actions IS 'Administrative actions. Rows are only added, and the sweep never deletes them.';
COMMENT ON COLUMN public.operator_actions.source IS 'Where the command came from, stated by the program that executed it: function and request id, or host and program.';
COMMENT ON COLUMN public.operator_actions.selection IS 'The parameters of the command, without secrets.';
COMMENT ON COLUMN public.operator_actions.dead_letter_ids IS 'The changed dead letters; for a dry run, those that would have changed; for a redrive to NATS, those published.';
COMMENT ON COLUMN public.operator_actions.count IS 'How many dead letters, clients or rows of the read model this transaction changed.';
CREATE TABLE public.operator_commands (
    command_id uuid NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    arguments jsonb NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    source text NOT NULL,
    status text DEFAULT 'PENDING'::text NOT NULL,
    "position" text,
    batches integer DEFAULT 0 NOT NULL,
    selected bigint DEFAULT 0 NOT NULL,
    done bigint DEFAULT 0 NOT NULL,
    skipped jsonb DEFAULT '{}'::jsonb NOT NULL,
    result jsonb,
    last_error text,
    attempt_count integer DEFAULT 0 NOT NULL,
    next_run_at timestamp with time zone DEFAULT now() NOT NULL,
    locked_by text,
    locked_at timestamp with time zone,
    lease_until timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT operator_commands_actor CHECK (((char_length(actor) >= 1) AND (char_length(actor) <= 500))),
    CONSTRAINT operator_commands_arguments CHECK (((jsonb_typeof(arguments) = 'object'::text) AND (octet_length((arguments)::text) <= 65536))),
    CONSTRAINT operator_commands_counts CHECK (((selected >= 0) AND (done >= 0) AND (batches >= 0) AND (attempt_count >= 0))),
    CONSTRAINT operator_commands_finished CHECK (((status = ANY (ARRAY['DONE'::text, 'FAILED'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT operator_commands_kind CHECK ((kind = ANY (ARRAY['dead_letters.redrive'::text, 'dead_letters.discard'::text, 'read_model.rebuild'::text, 'read_model.verify'::text]))),
    CONSTRAINT operator_commands_leased CHECK (((num_nulls(locked_by, locked_at, lease_until) = ANY (ARRAY[0, 3])) AND ((locked_by IS NULL) OR (status = 'RUNNING'::text)))),
    CONSTRAINT operator_commands_reason CHECK (((char_length(reason) >= 1) AND (char_length(reason) <= 500))),
    CONSTRAINT operator_commands_skipped CHECK ((jsonb_typeof(skipped) = 'object'::text)),
    CONSTRAINT operator_commands_source CHECK (((char_length(source) >= 1) AND (char_length(source) <= 500))),
    CONSTRAINT operator_commands_started CHECK (((status <> 'RUNNING'::text) OR (started_at IS NOT NULL))),
    CONSTRAINT operator_commands_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'DONE'::text, 'FAILED'::text])))
);
COMMENT ON COLUMN public.operator_commands.command_id IS 'Equal to the action_id of the rows in operator_actions.';
CREATE TABLE public.outbox_confirmation (
    only_row boolean DEFAULT true NOT NULL,
    mark timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    checked_at timestamp with time zone,
    completed_at timestamp with time zone,
    has_more boolean DEFAULT false NOT NULL,
    claim text COLLATE pg_catalog."C",
    lease_until timestamp with time zone,
    stream text COLLATE pg_catalog."C",
    stream_created_at timestamp with time zone,
    generation_since timestamp with time zone,
    first_sequence bigint,
    last_sequence bigint,
    deleted_messages bigint,
    newest_event_id uuid,
    newest_sequence bigint,
    newest_published_at timestamp with time zone,
    losses_until timestamp with time zone,
    CONSTRAINT outbox_confirmation_claim CHECK (((claim IS NULL) = (lease_until IS NULL))),
    CONSTRAINT outbox_confirmation_one_row CHECK (only_row)
);
COMMENT ON COLUMN public.outbox_confirmation.mark IS 'Every event that was published up to this time is finished, or listed in outbox_unconfirmed.';
COMMENT ON COLUMN public.outbox_confirmation.completed_at IS 'End of the last check that succeeded.';
COMMENT ON COLUMN public.outbox_confirmation.generation_since IS 'When a check first saw this generation of the stream. Sequences of events published before are not comparable.';
COMMENT ON COLUMN public.outbox_confirmation.newest_event_id IS 'One of the newest events at the last check: if the stream has another message there now, it was cut back.';
COMMENT ON COLUMN public.outbox_confirmation.losses_until IS 'stream_losses covers every event that was published up to this time and lost with a range of the stream.';
CREATE TABLE public.outbox_republications (
    event_id uuid NOT NULL,
    number integer NOT NULL,
    cause text NOT NULL,
    loss_id bigint,
    stream_sequence bigint,
    put_back_at timestamp with time zone NOT NULL,
    CONSTRAINT outbox_republications_cause CHECK ((cause = ANY (ARRAY['LOST'::text, 'NOT_DELIVERED'::text, 'RANGE_LOST'::text])))
);
COMMENT ON COLUMN public.outbox_republications.cause IS 'LOST: the stream no longer had the message. NOT_DELIVERED: it had, but its consumer would not deliver it again. RANGE_LOST: it was in a range that outside readers lost, see stream_losses.';
COMMENT ON COLUMN public.outbox_republications.stream_sequence IS 'Where the lost message was.';
CREATE TABLE public.processed_events (
    event_id uuid NOT NULL,
    processed_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.schema_definitions (
    name text NOT NULL COLLATE pg_catalog."C",
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.schema_migrations (
    name text NOT NULL COLLATE pg_catalog."C",
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.status_samples (
    sampled_at timestamp with time zone NOT NULL,
    outbox_pending bigint NOT NULL,
    outbox_failed bigint NOT NULL,
    oldest_pending_seconds double precision NOT NULL,
    consumer_lag bigint,
    notifications_pending bigint NOT NULL,
    dead_letters bigint NOT NULL,
    published bigint NOT NULL,
    processed bigint NOT NULL,
    sent bigint NOT NULL,
    settled_through timestamp with time zone NOT NULL,
    settled_age_seconds double precision NOT NULL
);
CREATE TABLE public.stream_losses (
    loss_id bigint NOT NULL,
    cause text NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    first_sequence bigint,
    last_sequence bigint,
    detected_at timestamp with time zone NOT NULL,
    examine_after timestamp with time zone NOT NULL,
    examine_below bigint NOT NULL,
    examined_until timestamp with time zone,
    events_lost bigint DEFAULT 0 NOT NULL,
    events_republished bigint DEFAULT 0 NOT NULL,
    completed_at timestamp with time zone,
    CONSTRAINT stream_losses_cause CHECK ((cause = ANY (ARRAY['CUT'::text, 'PURGED'::text, 'RECREATED'::text, 'DELETED'::text])))
);
COMMENT ON COLUMN public.stream_losses.first_sequence IS 'The lost range, as far as it is known.';
COMMENT ON COLUMN public.stream_losses.examine_after IS 'Events published after it and up to detected_at, with sequences below examine_below, are compared with the stream.';
COMMENT ON COLUMN public.stream_losses.examined_until IS 'The events published up to this time are examined. NULL: from the beginning.';
ALTER TABLE public.stream_losses ALTER COLUMN loss_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.stream_losses_loss_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW public.user_entitlements_differences AS
 SELECT user_id,
    stock_keeping_unit,
        CASE
            WHEN (r.version IS NULL) THEN 'missing'::text
            WHEN (e.version IS NULL) THEN 'extra'::text
            WHEN (r.version < e.version) THEN 'behind'::text
            WHEN (r.version > e.version) THEN 'ahead'::text
            ELSE 'wrong'::text
        END AS difference,
    e.status,
    e.version,
    e.updated_at,
    e.starts_at,
    e.expires_at,
    r.status AS seen_status,
    r.version AS seen_version,
    r.changed_at AS seen_changed_at,
    r.starts_at AS seen_starts_at,
    r.expires_at AS seen_expires_at
   FROM (public.entitlements e
     FULL JOIN public.user_entitlements r USING (user_id, stock_keeping_unit))
  WHERE (((((e.status IS DISTINCT FROM r.status) OR (e.version IS DISTINCT FROM r.version)) OR (e.updated_at IS DISTINCT FROM r.changed_at)) OR (e.starts_at IS DISTINCT FROM r.starts_at)) OR (e.expires_at IS DISTINCT FROM r.expires_at));
CREATE TABLE public.user_summaries (
    user_id text NOT NULL COLLATE pg_catalog."C",
    active bigint NOT NULL,
    revoked bigint NOT NULL,
    expired bigint NOT NULL,
    last_stock_keeping_unit text COLLATE pg_catalog."C",
    last_status text,
    last_version bigint,
    last_changed_at timestamp with time zone,
    CONSTRAINT user_summaries_counts CHECK (((active >= 0) AND (revoked >= 0) AND (expired >= 0))),
    CONSTRAINT user_summaries_last CHECK ((num_nulls(last_stock_keeping_unit, last_status, last_version, last_changed_at) =
CASE ((active + revoked) + expired)
    WHEN 0 THEN 4
    ELSE 0
END))
)
WITH (fillfactor='70');
CREATE VIEW public.user_summaries_expected AS
 SELECT DISTINCT ON (user_id) user_id,
    count(*) FILTER (WHERE (status = 'ACTIVE'::text)) OVER of_user AS active,
    count(*) FILTER (WHERE (status = 'REVOKED'::text)) OVER of_user AS revoked,
    count(*) FILTER (WHERE (status = 'EXPIRED'::text)) OVER of_user AS expired,
    stock_keeping_unit AS last_stock_keeping_unit,
    status AS last_status,
    version AS last_version,
    changed_at AS last_changed_at
   FROM public.user_entitlements
  WINDOW of_user AS (PARTITION BY user_id)
  ORDER BY user_id, changed_at DESC, version DESC, stock_keeping_unit;
CREATE VIEW public.user_summaries_differences AS
 SELECT user_id
   FROM (public.user_summaries_expected e
     FULL JOIN public.user_summaries s USING (user_id))
  WHERE (((((((COALESCE(e.active, (0)::bigint) IS DISTINCT FROM s.active) OR (COALESCE(e.revoked, (0)::bigint) IS DISTINCT FROM s.revoked)) OR (COALESCE(e.expired, (0)::bigint) IS DISTINCT FROM s.expired)) OR (e.last_stock_keeping_unit IS DISTINCT FROM s.last_stock_keeping_unit)) OR (e.last_status IS DISTINCT FROM s.last_status)) OR (e.last_version IS DISTINCT FROM s.last_version)) OR (e.last_changed_at IS DISTINCT FROM s.last_changed_at));
CREATE TABLE public.worker_heartbeats (
    worker text NOT NULL COLLATE pg_catalog."C",
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    error text,
    result jsonb NOT NULL,
    failures integer NOT NULL,
    last_success_at timestamp with time zone,
    resumed_at timestamp with time zone,
    CONSTRAINT worker_heartbeats_error_length CHECK ((char_length(error) <= 500)),
    CONSTRAINT worker_heartbeats_failures CHECK ((failures >= 0)),
    CONSTRAINT worker_heartbeats_outcome CHECK ((outcome = ANY (ARRAY['OK'::text, 'DEGRADED'::text, 'FAILED'::text]))),
    CONSTRAINT worker_heartbeats_result CHECK (((jsonb_typeof(result) = 'object'::text) AND (octet_length((result)::text) <= 16384))),
    CONSTRAINT worker_heartbeats_worker_length CHECK (((char_length(worker) >= 1) AND (char_length(worker) <= 64)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN public.worker_heartbeats.outcome IS 'DEGRADED: PostgreSQL, NATS or the receiver was unavailable at the end of the run. FAILED: any other error.';
COMMENT ON COLUMN public.worker_heartbeats.resumed_at IS 'When a run first reported after the last one that ended. It counts once, so that a worker whose runs never end is late.';
ALTER TABLE ONLY public.entitlement_audit ATTACH PARTITION public.entitlement_audit_default DEFAULT;
ALTER TABLE ONLY public.api_clients
    ADD CONSTRAINT api_clients_pkey PRIMARY KEY (client_id);
ALTER TABLE ONLY public.audit_retention
    ADD CONSTRAINT audit_retention_pkey PRIMARY KEY (single);
ALTER TABLE ONLY public.change_feed_waiters
    ADD CONSTRAINT change_feed_waiters_pkey PRIMARY KEY (waiter_id);
ALTER TABLE ONLY public.client_buckets
    ADD CONSTRAINT client_buckets_pkey PRIMARY KEY (client_id);
ALTER TABLE ONLY public.distributed_locks
    ADD CONSTRAINT distributed_locks_pkey PRIMARY KEY (lock_key);
ALTER TABLE ONLY public.entitlement_audit
    ADD CONSTRAINT entitlement_audit_pkey PRIMARY KEY (user_id, stock_keeping_unit, occurred_at, operation_id);
ALTER TABLE ONLY public.entitlement_audit_default
    ADD CONSTRAINT entitlement_audit_default_pkey PRIMARY KEY (user_id, stock_keeping_unit, occurred_at, operation_id);
ALTER TABLE ONLY public.entitlements
    ADD CONSTRAINT entitlements_pkey PRIMARY KEY (user_id, stock_keeping_unit);
ALTER TABLE ONLY public.guarded_transactions
    ADD CONSTRAINT guarded_transactions_pkey PRIMARY KEY (guard);
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (caller, route, idempotency_key);
ALTER TABLE ONLY public.installation
    ADD CONSTRAINT installation_pkey PRIMARY KEY (single);
ALTER TABLE ONLY public.key_conflicts
    ADD CONSTRAINT key_conflicts_pkey PRIMARY KEY (caller, route, key_hash, day);
ALTER TABLE ONLY public.notification_dlq
    ADD CONSTRAINT notification_dlq_pkey PRIMARY KEY (notification_id);
ALTER TABLE ONLY public.notification_nats_dlq
    ADD CONSTRAINT notification_nats_dlq_message UNIQUE NULLS NOT DISTINCT (stream, stream_seq, consumer, kind, message_time);
ALTER TABLE ONLY public.notification_nats_dlq
    ADD CONSTRAINT notification_nats_dlq_pkey PRIMARY KEY (dead_letter_id);
ALTER TABLE ONLY public.notifications
    ADD CONSTRAINT notifications_event UNIQUE (event_id);
ALTER TABLE ONLY public.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (notification_id);
ALTER TABLE ONLY public.operator_actions
    ADD CONSTRAINT operator_actions_pkey PRIMARY KEY (action_id, batch);
ALTER TABLE ONLY public.operator_commands
    ADD CONSTRAINT operator_commands_pkey PRIMARY KEY (command_id);
ALTER TABLE ONLY public.outbox_confirmation
    ADD CONSTRAINT outbox_confirmation_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY public.outbox_events
    ADD CONSTRAINT outbox_events_order UNIQUE (aggregate_key, aggregate_version);
ALTER TABLE ONLY public.outbox_events
    ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY public.outbox_republications
    ADD CONSTRAINT outbox_republications_pkey PRIMARY KEY (event_id, number);
ALTER TABLE ONLY public.outbox_unconfirmed
    ADD CONSTRAINT outbox_unconfirmed_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY public.processed_events
    ADD CONSTRAINT processed_events_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY public.processed_messages
    ADD CONSTRAINT processed_messages_pkey PRIMARY KEY (idempotency_key);
ALTER TABLE ONLY public.schema_definitions
    ADD CONSTRAINT schema_definitions_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.status_samples
    ADD CONSTRAINT status_samples_pkey PRIMARY KEY (sampled_at);
ALTER TABLE ONLY public.stream_losses
    ADD CONSTRAINT stream_losses_pkey PRIMARY KEY (loss_id);
ALTER TABLE ONLY public.user_entitlements
    ADD CONSTRAINT user_entitlements_pkey PRIMARY KEY (user_id, stock_keeping_unit);
ALTER TABLE ONLY public.user_summaries
    ADD CONSTRAINT user_summaries_pkey PRIMARY KEY (user_id);
ALTER TABLE ONLY public.worker_heartbeats
    ADD CONSTRAINT worker_heartbeats_pkey PRIMARY KEY (worker);
CREATE INDEX api_clients_created_by ON public.api_clients USING btree (created_by);
CREATE INDEX api_clients_expires_at ON public.api_clients USING btree (expires_at) WHERE (revoked_at IS NULL);
CREATE UNIQUE INDEX api_clients_name ON public.api_clients USING btree (name) WHERE (revoked_at IS NULL);
CREATE INDEX distributed_locks_expiry ON public.distributed_locks USING btree (lease_until);
CREATE INDEX entitlement_audit_changes ON ONLY public.entitlement_audit USING btree (transaction_id, occurred_at, operation_id) WHERE (outcome = 'APPLIED'::text);
CREATE INDEX entitlement_audit_correlation ON ONLY public.entitlement_audit USING btree (correlation_id, occurred_at) WHERE (correlation_id IS NOT NULL);
CREATE INDEX entitlement_audit_default_correlation_id_occurred_at_idx ON public.entitlement_audit_default USING btree (correlation_id, occurred_at) WHERE (correlation_id IS NOT NULL);
CREATE INDEX entitlement_audit_key ON ONLY public.entitlement_audit USING btree (((detail ->> 'key_fingerprint'::text)), occurred_at) WHERE ((detail ->> 'key_fingerprint'::text) IS NOT NULL);
CREATE INDEX entitlement_audit_default_expr_occurred_at_idx ON public.entitlement_audit_default USING btree (((detail ->> 'key_fingerprint'::text)), occurred_at) WHERE ((detail ->> 'key_fingerprint'::text) IS NOT NULL);
CREATE INDEX entitlement_audit_time ON ONLY public.entitlement_audit USING brin (occurred_at) WITH (pages_per_range='32', autosummarize='on');
CREATE INDEX entitlement_audit_default_occurred_at_idx ON public.entitlement_audit_default USING brin (occurred_at) WITH (pages_per_range='32', autosummarize='on');
CREATE INDEX entitlement_audit_purchase ON ONLY public.entitlement_audit USING btree (purchase_id, occurred_at) WHERE (purchase_id IS NOT NULL);
CREATE INDEX entitlement_audit_default_purchase_id_occurred_at_idx ON public.entitlement_audit_default USING btree (purchase_id, occurred_at) WHERE (purchase_id IS NOT NULL);
CREATE INDEX entitlement_audit_trace ON ONLY public.entitlement_audit USING btree (trace_id, occurred_at) WHERE (trace_id IS NOT NULL);
CREATE INDEX entitlement_audit_default_trace_id_occurred_at_idx ON public.entitlement_audit_default USING btree (trace_id, occurred_at) WHERE (trace_id IS NOT NULL);
CREATE INDEX entitlement_audit_default_transaction_id_occurred_at_operat_idx ON public.entitlement_audit_default USING btree (transaction_id, occurred_at, operation_id) WHERE (outcome = 'APPLIED'::text);
CREATE INDEX entitlement_audit_history ON ONLY public.entitlement_audit USING btree (user_id, stock_keeping_unit, version, changed_at) WHERE (outcome = 'APPLIED'::text);
CREATE INDEX entitlement_audit_default_user_id_stock_keeping_unit_versio_idx ON public.entitlement_audit_default USING btree (user_id, stock_keeping_unit, version, changed_at) WHERE (outcome = 'APPLIED'::text);
CREATE INDEX entitlements_ending ON public.entitlements USING btree (expires_at) WHERE ((status = 'ACTIVE'::text) AND (expires_at IS NOT NULL));
CREATE INDEX entitlements_expiring ON public.entitlements USING btree (expires_at) WHERE expiring_pending;
CREATE INDEX entitlements_starting ON public.entitlements USING btree (starts_at) WHERE start_pending;
CREATE INDEX idempotency_keys_expiry ON public.idempotency_keys USING btree (expires_at);
CREATE INDEX key_conflicts_last_at ON public.key_conflicts USING btree (last_at);
CREATE INDEX notification_dlq_closed_at ON public.notification_dlq USING btree (closed_at) WHERE (closed_at IS NOT NULL);
CREATE INDEX notification_dlq_event ON public.notification_dlq USING btree (event_id);
CREATE INDEX notification_dlq_open ON public.notification_dlq USING btree (failed_at, notification_id) WHERE (closed_at IS NULL);
CREATE INDEX notification_nats_dlq_advised ON public.notification_nats_dlq USING btree (advised_at, dead_letter_id) WHERE (status = 'OPEN'::text);
CREATE INDEX notification_nats_dlq_closed ON public.notification_nats_dlq USING btree (closed_at) WHERE (closed_at IS NOT NULL);
CREATE INDEX notification_nats_dlq_event ON public.notification_nats_dlq USING btree (event_id, stream_seq) WHERE (event_id IS NOT NULL);
CREATE INDEX notification_nats_dlq_open ON public.notification_nats_dlq USING btree (dead_letter_id) WHERE (status = 'OPEN'::text);
CREATE INDEX notification_nats_dlq_unconfirmed ON public.notification_nats_dlq USING btree (redriven_at) WHERE ((status = 'REDRIVEN'::text) AND (NOT redrive_confirmed) AND (event_id IS NOT NULL));
CREATE INDEX notification_nats_dlq_unconfirmed_change ON public.notification_nats_dlq USING btree (COALESCE(event_time, message_time, advised_at)) WHERE ((status = 'REDRIVEN'::text) AND (NOT redrive_confirmed) AND (event_id IS NOT NULL));
CREATE INDEX notifications_created_at ON public.notifications USING btree (created_at);
CREATE INDEX notifications_due ON public.notifications USING btree (next_retry_at) WHERE (next_retry_at IS NOT NULL);
CREATE INDEX notifications_inbox ON public.notifications USING btree (user_id, created_at DESC, version DESC, event_id DESC);
CREATE INDEX notifications_unsent ON public.notifications USING btree (occurred_at) WHERE (next_retry_at IS NOT NULL);
CREATE INDEX operator_actions_client ON public.operator_actions USING btree (client_id, occurred_at) WHERE (client_id IS NOT NULL);
CREATE INDEX operator_actions_dead_letters ON public.operator_actions USING gin (dead_letter_ids) WHERE (dead_letter_ids IS NOT NULL);
CREATE INDEX operator_actions_time ON public.operator_actions USING btree (occurred_at);
CREATE INDEX operator_commands_created ON public.operator_commands USING btree (created_at, command_id);
CREATE INDEX operator_commands_finished ON public.operator_commands USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX operator_commands_open ON public.operator_commands USING btree (next_run_at) WHERE (finished_at IS NULL);
CREATE INDEX outbox_events_discarded_at ON public.outbox_events USING btree (discarded_at) WHERE (discarded_at IS NOT NULL);
CREATE INDEX outbox_events_failed ON public.outbox_events USING btree (failed_at, event_id) WHERE (failed_at IS NOT NULL);
CREATE INDEX outbox_events_open ON public.outbox_events USING btree (aggregate_key, aggregate_version) WHERE ((published_at IS NULL) AND (discarded_at IS NULL));
CREATE INDEX outbox_events_published_at ON public.outbox_events USING btree (published_at) WHERE (published_at IS NOT NULL);
CREATE INDEX outbox_events_published_late ON public.outbox_events USING btree (published_at) WHERE ((published_at - created_at) > '00:00:10'::interval);
CREATE INDEX outbox_events_ready ON public.outbox_events USING btree (created_at) WHERE ready;
CREATE INDEX outbox_republications_put_back_at ON public.outbox_republications USING btree (put_back_at);
CREATE INDEX outbox_unconfirmed_changed_at ON public.outbox_unconfirmed USING btree (changed_at) WHERE (state <> 'TOO_OLD'::text);
CREATE INDEX outbox_unconfirmed_examined ON public.outbox_unconfirmed USING btree (examined_at NULLS FIRST, stream_sequence);
CREATE INDEX outbox_unconfirmed_too_old ON public.outbox_unconfirmed USING btree (found_at, event_id) WHERE (state = 'TOO_OLD'::text);
CREATE INDEX processed_events_time ON public.processed_events USING btree (processed_at);
CREATE INDEX processed_messages_expiry ON public.processed_messages USING btree (expires_at);
CREATE INDEX stream_losses_detected_at ON public.stream_losses USING btree (detected_at);
CREATE INDEX stream_losses_open ON public.stream_losses USING btree (loss_id) WHERE (completed_at IS NULL);
CREATE INDEX user_entitlements_active ON public.user_entitlements USING btree (user_id, stock_keeping_unit) WHERE (status = 'ACTIVE'::text);
CREATE INDEX user_entitlements_ending ON public.user_entitlements USING btree (user_id, expires_at) WHERE ((status = 'ACTIVE'::text) AND (expires_at IS NOT NULL));
CREATE INDEX user_entitlements_starting ON public.user_entitlements USING btree (user_id, starts_at) WHERE ((status = 'ACTIVE'::text) AND (starts_at IS NOT NULL));
ALTER INDEX public.entitlement_audit_correlation ATTACH PARTITION public.entitlement_audit_default_correlation_id_occurred_at_idx;
ALTER INDEX public.entitlement_audit_key ATTACH PARTITION public.entitlement_audit_default_expr_occurred_at_idx;
ALTER INDEX public.entitlement_audit_time ATTACH PARTITION public.entitlement_audit_default_occurred_at_idx;
ALTER INDEX public.entitlement_audit_pkey ATTACH PARTITION public.entitlement_audit_default_pkey;
ALTER INDEX public.entitlement_audit_purchase ATTACH PARTITION public.entitlement_audit_default_purchase_id_occurred_at_idx;
ALTER INDEX public.entitlement_audit_trace ATTACH PARTITION public.entitlement_audit_default_trace_id_occurred_at_idx;
ALTER INDEX public.entitlement_audit_changes ATTACH PARTITION public.entitlement_audit_default_transaction_id_occurred_at_operat_idx;
ALTER INDEX public.entitlement_audit_history ATTACH PARTITION public.entitlement_audit_default_user_id_stock_keeping_unit_versio_idx;
CREATE TRIGGER api_clients_keep_revocation BEFORE UPDATE ON public.api_clients FOR EACH ROW WHEN (((old.revoked_at IS NOT NULL) AND (new.revoked_at IS DISTINCT FROM old.revoked_at))) EXECUTE FUNCTION public.api_clients_keep_revocation();
ALTER TABLE public.api_clients ENABLE ALWAYS TRIGGER api_clients_keep_revocation;
CREATE CONSTRAINT TRIGGER guarded_transactions_finished AFTER INSERT ON public.guarded_transactions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.guarded_transactions_refuse_commit();
CREATE TRIGGER operator_actions_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.operator_actions FOR EACH STATEMENT EXECUTE FUNCTION public.operator_actions_append_only();
ALTER TABLE public.operator_actions ENABLE ALWAYS TRIGGER operator_actions_append_only;
CREATE TRIGGER outbox_events_failed_at BEFORE UPDATE OF status ON public.outbox_events FOR EACH ROW WHEN (((new.status = 'FAILED'::text) <> (old.status = 'FAILED'::text))) EXECUTE FUNCTION public.outbox_events_failed_at();
CREATE TRIGGER user_entitlements_deleted AFTER DELETE ON public.user_entitlements REFERENCING OLD TABLE AS rows_before FOR EACH STATEMENT EXECUTE FUNCTION public.user_summaries_maintain();
CREATE TRIGGER user_entitlements_inserted AFTER INSERT ON public.user_entitlements REFERENCING NEW TABLE AS rows_after FOR EACH STATEMENT EXECUTE FUNCTION public.user_summaries_maintain();
CREATE TRIGGER user_entitlements_truncated AFTER TRUNCATE ON public.user_entitlements FOR EACH STATEMENT EXECUTE FUNCTION public.user_summaries_maintain();
CREATE TRIGGER user_entitlements_updated AFTER UPDATE ON public.user_entitlements REFERENCING OLD TABLE AS rows_before NEW TABLE AS rows_after FOR EACH STATEMENT EXECUTE FUNCTION public.user_summaries_maintain();
ALTER TABLE ONLY public.api_clients
    ADD CONSTRAINT api_clients_created_by_fkey FOREIGN KEY (created_by) REFERENCES public.api_clients(client_id);
GRANT USAGE ON SCHEMA public TO grantwire_functions;
GRANT USAGE ON SCHEMA public TO grantwire_clients;
GRANT SELECT,INSERT ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(status) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(version) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(updated_at) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(starts_at) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(expires_at) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(purchase_id) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(start_pending) ON TABLE public.entitlements TO grantwire_functions;
GRANT UPDATE(expiring_pending) ON TABLE public.entitlements TO grantwire_functions;
REVOKE ALL ON FUNCTION public.announce(p_entitlement public.entitlements, p_operation text, p_trace_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.announce(p_entitlement public.entitlements, p_operation text, p_trace_id text, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.api_clients_keep_revocation() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.apply_due(p_entitlement public.entitlements, p_grace interval, p_notice interval, p_trace_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.apply_due(p_entitlement public.entitlements, p_grace interval, p_notice interval, p_trace_id text, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.change_entitlement(p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer, p_grace interval, p_notice interval, p_change public.entitlement_change, OUT outcome text, OUT status_code integer, OUT body text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.change_entitlement(p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer, p_grace interval, p_notice interval, p_change public.entitlement_change, OUT outcome text, OUT status_code integer, OUT body text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.change_entitlements(p_caller text, p_ttl interval, p_lock_wait_ms integer, p_wait_ms integer, p_atomic boolean, p_grace interval, p_notice interval, p_changes jsonb, OUT outcomes text[], OUT status_codes integer[], OUT bodies text[], OUT refused integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.change_entitlements(p_caller text, p_ttl interval, p_lock_wait_ms integer, p_wait_ms integer, p_atomic boolean, p_grace interval, p_notice interval, p_changes jsonb, OUT outcomes text[], OUT status_codes integer[], OUT bodies text[], OUT refused integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.change_feed_lag() FROM PUBLIC;
GRANT ALL ON FUNCTION public.change_feed_lag() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.change_feed_page(p_installation text, p_transaction_id xid8, p_occurred_at timestamp with time zone, p_operation_id uuid, p_limit integer, OUT outcome text, OUT identity text, OUT changes text, OUT has_more boolean, OUT next_transaction_id xid8, OUT next_occurred_at timestamp with time zone, OUT next_operation_id uuid, OUT visible_before xid8) FROM PUBLIC;
GRANT ALL ON FUNCTION public.change_feed_page(p_installation text, p_transaction_id xid8, p_occurred_at timestamp with time zone, p_operation_id uuid, p_limit integer, OUT outcome text, OUT identity text, OUT changes text, OUT has_more boolean, OUT next_transaction_id xid8, OUT next_occurred_at timestamp with time zone, OUT next_operation_id uuid, OUT visible_before xid8) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.change_feed_wait(p_waiter_id uuid, p_client_id text, p_seconds double precision, p_limit integer, p_client_limit integer, p_now timestamp with time zone, OUT retry_after integer, OUT is_own_limit boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION public.change_feed_wait(p_waiter_id uuid, p_client_id text, p_seconds double precision, p_limit integer, p_client_limit integer, p_now timestamp with time zone, OUT retry_after integer, OUT is_own_limit boolean) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.client_expires_at(p_client_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.client_expires_at(p_client_id text) TO grantwire_functions;
GRANT ALL ON FUNCTION public.client_expires_at(p_client_id text) TO grantwire_clients;
REVOKE ALL ON FUNCTION public.client_request_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, OUT decision text, OUT status_code integer, OUT body text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.client_request_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, OUT decision text, OUT status_code integer, OUT body text) TO grantwire_clients;
REVOKE ALL ON FUNCTION public.client_request_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval) FROM PUBLIC;
GRANT ALL ON FUNCTION public.client_request_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval) TO grantwire_clients;
REVOKE ALL ON FUNCTION public.client_tokens_take(p_client_id text, p_rate integer, p_burst integer, p_now timestamp with time zone, p_count integer, OUT granted integer, OUT retry_after double precision, OUT burst integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.client_tokens_take(p_client_id text, p_rate integer, p_burst integer, p_now timestamp with time zone, p_count integer, OUT granted integer, OUT retry_after double precision, OUT burst integer) TO grantwire_functions;
GRANT ALL ON FUNCTION public.client_tokens_take(p_client_id text, p_rate integer, p_burst integer, p_now timestamp with time zone, p_count integer, OUT granted integer, OUT retry_after double precision, OUT burst integer) TO grantwire_clients;
REVOKE ALL ON FUNCTION public.clients_expiring(p_window interval, p_cap integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.clients_expiring(p_window interval, p_cap integer, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.dead_letter_cause(p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.dead_letter_cause(p_error text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.dead_letter_find(p_kind text, p_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION public.dead_letter_find(p_kind text, p_id uuid) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.dead_letter_groups(p_cap integer, p_groups integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.dead_letter_groups(p_cap integer, p_groups integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_aggregate_key(p_user_id text, p_sku text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_aggregate_key(p_user_id text, p_sku text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_at(p_user_id text, p_sku text, p_at timestamp with time zone, p_now timestamp with time zone, OUT refusal text, OUT entitlement public.entitlements) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_at(p_user_id text, p_sku text, p_at timestamp with time zone, p_now timestamp with time zone, OUT refusal text, OUT entitlement public.entitlements) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_audit_begin() FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_audit_begin() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_audit_ensure_partitions(p_months_ahead integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_audit_ensure_partitions(p_months_ahead integer, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_check(p_user_id text, p_sku text, p_entitlement public.entitlements, p_grace interval, p_cache interval, p_now timestamp with time zone, OUT body text, OUT etag text, OUT max_age integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_check(p_user_id text, p_sku text, p_entitlement public.entitlements, p_grace interval, p_cache interval, p_now timestamp with time zone, OUT body text, OUT etag text, OUT max_age integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_event_type(p_operation text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_event_type(p_operation text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_fields(p_row anyelement, p_nulls boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_fields(p_row anyelement, p_nulls boolean) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_history(p_user_id text, p_sku text, p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_history(p_user_id text, p_sku text, p_before timestamp with time zone, p_limit integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_json(p_entitlement public.entitlements, p_status text, p_with_user boolean, p_with_fields boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_json(p_entitlement public.entitlements, p_status text, p_with_user boolean, p_with_fields boolean) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_lock_key(p_user_id text, p_sku text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_lock_key(p_user_id text, p_sku text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_state(p_status text, p_starts_at timestamp with time zone, p_expires_at timestamp with time zone, p_grace interval, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_state(p_status text, p_starts_at timestamp with time zone, p_expires_at timestamp with time zone, p_grace interval, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_status_after(p_event_type text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_status_after(p_event_type text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlement_transition(p_change public.entitlement_change, p_grace interval, p_notice interval, OUT refusal text, OUT invalid text, OUT entitlement public.entitlements) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlement_transition(p_change public.entitlement_change, p_grace interval, p_notice interval, OUT refusal text, OUT invalid text, OUT entitlement public.entitlements) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.entitlements_lock(p_user_ids text[], p_skus text[], p_deadline timestamp with time zone, p_lock_wait_ms integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.entitlements_lock(p_user_ids text[], p_skus text[], p_deadline timestamp with time zone, p_lock_wait_ms integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.expire_due(p_limit integer, p_grace interval, p_notice interval, p_trace_id text, p_isolate boolean, p_skip integer[], OUT started integer, OUT expiring integer, OUT expired integer, OUT failed integer, OUT error text, OUT failed_of integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.expire_due(p_limit integer, p_grace interval, p_notice interval, p_trace_id text, p_isolate boolean, p_skip integer[], OUT started integer, OUT expiring integer, OUT expired integer, OUT failed integer, OUT error text, OUT failed_of integer[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.genuine_events(p_event_ids uuid[], p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamp with time zone[], p_digests bytea[], p_fields text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.genuine_events(p_event_ids uuid[], p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamp with time zone[], p_digests bytea[], p_fields text[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.guarded_transaction_begin(p_guard text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.guarded_transaction_begin(p_guard text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.guarded_transaction_end(p_guard text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.guarded_transaction_end(p_guard text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.guarded_transactions_refuse_commit() FROM PUBLIC;
GRANT ALL ON FUNCTION public.guarded_transactions_refuse_commit() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.idempotency_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_any_isolation boolean, OUT decision text, OUT status_code integer, OUT body text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.idempotency_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_any_isolation boolean, OUT decision text, OUT status_code integer, OUT body text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.idempotency_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval) FROM PUBLIC;
GRANT ALL ON FUNCTION public.idempotency_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.idempotency_lock_keys(p_caller text, p_routes text[], p_keys text[], p_request_hashes text[], p_lock_wait_ms integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.idempotency_lock_keys(p_caller text, p_routes text[], p_keys text[], p_request_hashes text[], p_lock_wait_ms integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.inbox_begin(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION public.inbox_begin(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.inbox_check(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, p_any_isolation boolean, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION public.inbox_check(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, p_any_isolation boolean, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.inbox_finish(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval, p_result_ttl interval, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.inbox_finish(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval, p_result_ttl interval, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.inbox_record(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT decision text, OUT free_in interval) FROM PUBLIC;
GRANT ALL ON FUNCTION public.inbox_record(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT decision text, OUT free_in interval) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.installation_identity() FROM PUBLIC;
GRANT ALL ON FUNCTION public.installation_identity() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.installation_renew() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.is_schema_owner() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.key_conflict_count(p_caller text, p_route text, p_key text, p_operation_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION public.key_conflict_count(p_caller text, p_route text, p_key text, p_operation_id uuid) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.lock_timeout_until(p_deadline timestamp with time zone, p_lock_wait_ms integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.lock_timeout_until(p_deadline timestamp with time zone, p_lock_wait_ms integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.nats_dead_letter_error(p_kind text, p_deliveries integer, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.nats_dead_letter_error(p_kind text, p_deliveries integer, p_reason text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.rfc3339(p_time timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.rfc3339(p_time timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.notification_responses_add(p_responses jsonb, p_at timestamp with time zone, p_response text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.notification_responses_add(p_responses jsonb, p_at timestamp with time zone, p_response text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.oldest_writing_transaction() FROM PUBLIC;
GRANT ALL ON FUNCTION public.oldest_writing_transaction() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.oldest_writing_transaction_of_all() FROM PUBLIC;
GRANT ALL ON FUNCTION public.oldest_writing_transaction_of_all() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.operations_status(p_cap integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.operations_status(p_cap integer, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.operator_actions_append_only() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.operator_actions_find(p_dead_letter_ids uuid[], p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.operator_actions_find(p_dead_letter_ids uuid[], p_limit integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_confirmation_status(p_cap integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_confirmation_status(p_cap integer, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_discard(p_event_ids uuid[], p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_discard(p_event_ids uuid[], p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_enqueue(p_event_id uuid, p_event_type text, p_aggregate_key text, p_aggregate_version bigint, p_payload jsonb, p_trace_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_enqueue(p_event_id uuid, p_event_type text, p_aggregate_key text, p_aggregate_version bigint, p_payload jsonb, p_trace_id text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_events_failed_at() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.outbox_finalise(p_claim text, p_event_ids uuid[], p_now timestamp with time zone, p_sequences bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_finalise(p_claim text, p_event_ids uuid[], p_now timestamp with time zone, p_sequences bigint[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_lock_closed(p_event_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_lock_closed(p_event_ids uuid[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_lock_entitlements(p_event_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_lock_entitlements(p_event_ids uuid[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_lock_last(p_aggregate_keys text[], p_deadline timestamp with time zone, p_lock_wait_ms integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_lock_last(p_aggregate_keys text[], p_deadline timestamp with time zone, p_lock_wait_ms integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_oldest_unconfirmed(p_cap integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_oldest_unconfirmed(p_cap integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_oldest_unpublished(p_cap integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_oldest_unpublished(p_cap integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_promote(p_aggregate_keys text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_promote(p_aggregate_keys text[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_promote_stuck() FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_promote_stuck() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_put_back(p_event_ids uuid[], p_sequences bigint[], p_cause text, p_loss_id bigint, p_arrived boolean, p_oldest timestamp with time zone, p_backoff interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT put_back integer, OUT too_old integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_put_back(p_event_ids uuid[], p_sequences bigint[], p_cause text, p_loss_id bigint, p_arrived boolean, p_oldest timestamp with time zone, p_backoff interval, p_lock_wait_ms integer, p_now timestamp with time zone, OUT put_back integer, OUT too_old integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.outbox_redrive(p_event_ids uuid[], p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.outbox_redrive(p_event_ids uuid[], p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.processed_message_check(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_now timestamp with time zone, p_hash text, p_any_isolation boolean, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint, OUT last_error text, OUT stored_hash text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.processed_message_check(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval, p_now timestamp with time zone, p_hash text, p_any_isolation boolean, OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint, OUT last_error text, OUT stored_hash text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.processed_message_complete(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval, p_result_ttl interval, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.processed_message_complete(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_result text, p_ttl interval, p_result_ttl interval, p_now timestamp with time zone) TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.processed_messages TO grantwire_functions;
REVOKE ALL ON FUNCTION public.processed_message_covers(m public.processed_messages, p_mark bigint, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.processed_message_covers(m public.processed_messages, p_mark bigint, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.processed_message_fail(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_error text, p_ttl interval, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.processed_message_fail(p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_error text, p_ttl interval, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.processed_message_taken(m public.processed_messages, p_token text, p_mark bigint, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.processed_message_taken(m public.processed_messages, p_token text, p_mark bigint, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.record_change(p_change public.entitlement_change, p_entitlement public.entitlements, p_detail jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION public.record_change(p_change public.entitlement_change, p_entitlement public.entitlements, p_detail jsonb) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.request_guard_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text, OUT decision text, OUT status_code integer, OUT body text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.request_guard_begin(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text, OUT decision text, OUT status_code integer, OUT body text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.request_guard_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval, p_guard text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.request_guard_finish(p_caller text, p_route text, p_key text, p_request_hash text, p_status_code integer, p_body text, p_ttl interval, p_guard text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.request_guard_join(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text, OUT decision text, OUT status_code integer, OUT body text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.request_guard_join(p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer, p_guard text, OUT decision text, OUT status_code integer, OUT body text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.schema_version() FROM PUBLIC;
GRANT ALL ON FUNCTION public.schema_version() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.settled_through(p_cap integer, p_grace interval, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.settled_through(p_cap integer, p_grace interval, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.status_sample_take(p_late_after jsonb, p_grace interval, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.status_sample_take(p_late_after jsonb, p_grace interval, p_now timestamp with time zone) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.trace_changes(p_user_id text, p_sku text, p_purchase_id text, p_trace_id text, p_fingerprint text, p_event_id uuid, p_limit integer, p_correlation_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.trace_changes(p_user_id text, p_sku text, p_purchase_id text, p_trace_id text, p_fingerprint text, p_event_id uuid, p_limit integer, p_correlation_id text) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.trace_stages(p_event_ids uuid[], p_requests jsonb, p_ttl interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.trace_stages(p_event_ids uuid[], p_requests jsonb, p_ttl interval, p_limit integer) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.user_entitlements_project(p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamp with time zone[], p_starts_at timestamp with time zone[], p_expires_at timestamp with time zone[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.user_entitlements_project(p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamp with time zone[], p_starts_at timestamp with time zone[], p_expires_at timestamp with time zone[]) TO grantwire_functions;
GRANT SELECT,INSERT,DELETE ON TABLE public.user_entitlements TO grantwire_functions;
GRANT UPDATE(status) ON TABLE public.user_entitlements TO grantwire_functions;
GRANT UPDATE(version) ON TABLE public.user_entitlements TO grantwire_functions;
GRANT UPDATE(changed_at) ON TABLE public.user_entitlements TO grantwire_functions;
GRANT UPDATE(starts_at) ON TABLE public.user_entitlements TO grantwire_functions;
GRANT UPDATE(expires_at) ON TABLE public.user_entitlements TO grantwire_functions;
REVOKE ALL ON FUNCTION public.user_summaries_apply(p_before public.user_entitlements[], p_after public.user_entitlements[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.user_summaries_apply(p_before public.user_entitlements[], p_after public.user_entitlements[]) TO grantwire_functions;
REVOKE ALL ON FUNCTION public.user_summaries_lock() FROM PUBLIC;
GRANT ALL ON FUNCTION public.user_summaries_lock() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.user_summaries_maintain() FROM PUBLIC;
GRANT ALL ON FUNCTION public.user_summaries_maintain() TO grantwire_functions;
REVOKE ALL ON FUNCTION public.user_summaries_repair() FROM PUBLIC;
GRANT ALL ON FUNCTION public.user_summaries_repair() TO grantwire_functions;
GRANT SELECT ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(client_id) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(client_id) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(name) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(name) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(scopes) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(scopes) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(token_hash) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(token_hash),UPDATE(token_hash) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(previous_hash) ON TABLE public.api_clients TO grantwire_functions;
GRANT UPDATE(previous_hash) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(previous_until) ON TABLE public.api_clients TO grantwire_functions;
GRANT UPDATE(previous_until) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(created_at) ON TABLE public.api_clients TO grantwire_functions;
GRANT UPDATE(rotated_at) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(expires_at) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(expires_at),UPDATE(expires_at) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(revoked_at) ON TABLE public.api_clients TO grantwire_functions;
GRANT UPDATE(revoked_at) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(last_used_at),UPDATE(last_used_at) ON TABLE public.api_clients TO grantwire_functions;
GRANT SELECT(rate_limit) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(rate_limit),UPDATE(rate_limit) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(burst_limit) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(burst_limit),UPDATE(burst_limit) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT(created_by) ON TABLE public.api_clients TO grantwire_functions;
GRANT INSERT(created_by) ON TABLE public.api_clients TO grantwire_clients;
GRANT SELECT,INSERT,DELETE ON TABLE public.change_feed_waiters TO grantwire_functions;
GRANT SELECT,INSERT ON TABLE public.client_buckets TO grantwire_functions;
GRANT SELECT,INSERT ON TABLE public.client_buckets TO grantwire_clients;
GRANT UPDATE(tokens) ON TABLE public.client_buckets TO grantwire_functions;
GRANT UPDATE(tokens) ON TABLE public.client_buckets TO grantwire_clients;
GRANT UPDATE(filled_at) ON TABLE public.client_buckets TO grantwire_functions;
GRANT UPDATE(filled_at) ON TABLE public.client_buckets TO grantwire_clients;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.notification_dlq TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.notification_nats_dlq TO grantwire_functions;
GRANT SELECT,INSERT,DELETE ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(status) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(ready) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(attempt_count) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(next_retry_at) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(locked_by) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(locked_at) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(lease_until) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(last_error) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(published_at) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(discarded_at) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(stream_sequence) ON TABLE public.outbox_events TO grantwire_functions;
GRANT UPDATE(republication) ON TABLE public.outbox_events TO grantwire_functions;
GRANT SELECT ON TABLE public.closed_dead_letters TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.outbox_unconfirmed TO grantwire_functions;
GRANT SELECT ON TABLE public.dead_letters TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.distributed_locks TO grantwire_functions;
GRANT INSERT(operation_id) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(caller) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(operation) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(outcome) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(user_id) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(stock_keeping_unit) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(trace_id) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(detail) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(version) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(status) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(purchase_id) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(source_address) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(starts_at) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(expires_at) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(changed_at) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT INSERT(correlation_id) ON TABLE public.entitlement_audit TO grantwire_functions;
GRANT SELECT(occurred_at) ON TABLE public.entitlement_audit_default TO grantwire_functions;
GRANT SELECT,INSERT,DELETE ON TABLE public.guarded_transactions TO grantwire_functions;
GRANT USAGE ON SEQUENCE public.idempotency_fences TO grantwire_functions;
GRANT SELECT,INSERT,DELETE ON TABLE public.idempotency_keys TO grantwire_functions;
GRANT UPDATE(request_hash) ON TABLE public.idempotency_keys TO grantwire_functions;
GRANT UPDATE(status_code) ON TABLE public.idempotency_keys TO grantwire_functions;
GRANT UPDATE(response_body) ON TABLE public.idempotency_keys TO grantwire_functions;
GRANT UPDATE(created_at) ON TABLE public.idempotency_keys TO grantwire_functions;
GRANT UPDATE(expires_at) ON TABLE public.idempotency_keys TO grantwire_functions;
GRANT SELECT(installation_id) ON TABLE public.installation TO grantwire_functions;
GRANT SELECT,DELETE ON TABLE public.key_conflicts TO grantwire_functions;
GRANT INSERT(caller) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT INSERT(route) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT INSERT(key_hash) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT INSERT(day) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT INSERT(operation_id) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT UPDATE(conflicts) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT UPDATE(last_at) ON TABLE public.key_conflicts TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.notifications TO grantwire_functions;
GRANT INSERT(action_id) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(action_id) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(batch) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(batch) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(actor) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(actor) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(reason) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(reason) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(source) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(source) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(action) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(action) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(kind) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(kind) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(selection) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(selection) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(dry_run) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(dry_run) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(client_id) ON TABLE public.operator_actions TO grantwire_clients;
GRANT INSERT(dead_letter_ids) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(count) ON TABLE public.operator_actions TO grantwire_functions;
GRANT INSERT(count) ON TABLE public.operator_actions TO grantwire_clients;
GRANT SELECT,INSERT,DELETE ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(status) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE("position") ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(batches) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(selected) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(done) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(skipped) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(result) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(last_error) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(attempt_count) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(next_run_at) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(locked_by) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(locked_at) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(lease_until) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(started_at) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(updated_at) ON TABLE public.operator_commands TO grantwire_functions;
GRANT UPDATE(finished_at) ON TABLE public.operator_commands TO grantwire_functions;
GRANT SELECT,UPDATE ON TABLE public.outbox_confirmation TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.outbox_republications TO grantwire_functions;
GRANT SELECT,INSERT,DELETE ON TABLE public.processed_events TO grantwire_functions;
GRANT UPDATE(processed_at) ON TABLE public.processed_events TO grantwire_functions;
GRANT SELECT(name) ON TABLE public.schema_definitions TO grantwire_functions;
GRANT SELECT(checksum) ON TABLE public.schema_definitions TO grantwire_functions;
GRANT SELECT(name) ON TABLE public.schema_migrations TO grantwire_functions;
GRANT SELECT(checksum) ON TABLE public.schema_migrations TO grantwire_functions;
GRANT SELECT,INSERT,DELETE ON TABLE public.status_samples TO grantwire_functions;
GRANT UPDATE(sent) ON TABLE public.status_samples TO grantwire_functions;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.stream_losses TO grantwire_functions;
GRANT SELECT ON TABLE public.user_entitlements_differences TO grantwire_functions;
GRANT SELECT,INSERT,UPDATE ON TABLE public.user_summaries TO grantwire_functions;
GRANT SELECT ON TABLE public.user_summaries_expected TO grantwire_functions;
GRANT SELECT ON TABLE public.user_summaries_differences TO grantwire_functions;
GRANT SELECT,INSERT,UPDATE ON TABLE public.worker_heartbeats TO grantwire_functions;
