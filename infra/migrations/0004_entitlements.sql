-- The system of record (SPEC E1) and the one call that changes it (E6, E7): key, right, event, audit row and stored
-- answer commit together or not at all.

CREATE TABLE entitlements (
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    status             text        NOT NULL,
    version            bigint      NOT NULL,
    updated_at         timestamptz NOT NULL,
    PRIMARY KEY (user_id, stock_keeping_unit),
    CONSTRAINT entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED')),
    CONSTRAINT entitlements_version CHECK (version >= 1),
    CONSTRAINT entitlements_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT entitlements_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128)
) WITH (fillfactor = 80);

-- RFC 3339 in UTC with microseconds: the one spelling of a time in answers and events.
CREATE FUNCTION rfc3339(p_time timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- One name for a right. The escape keeps ("a/b", "c") and ("a", "b/c") apart.
CREATE FUNCTION entitlement_aggregate_key(p_user_id text, p_sku text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN replace(replace(p_user_id, '%', '%25'), '/', '%2F') || '/' || p_sku;

-- Moves the right to p_status if the state allows it. `refusal` says why it does not; version and time are then NULL.
-- The first grant of a pair has no row to lock, so ON CONFLICT decides; its expressions are evaluated after the row
-- lock, which keeps updated_at from running backwards.
CREATE FUNCTION entitlement_transition(
    p_status text, p_user_id text, p_sku text,
    OUT refusal text, OUT new_version bigint, OUT changed_at timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    current_status text;
BEGIN
    IF p_status = 'ACTIVE' THEN
        INSERT INTO entitlements AS e (user_id, stock_keeping_unit, status, version, updated_at)
        VALUES (p_user_id, p_sku, 'ACTIVE', 1, clock_timestamp())
        ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
           SET status     = EXCLUDED.status,
               version    = e.version + 1,
               updated_at = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond')
         WHERE e.status <> EXCLUDED.status
        RETURNING version, updated_at INTO new_version, changed_at;
        IF NOT FOUND THEN
            refusal := 'already ACTIVE';
        END IF;
        RETURN;
    END IF;

    SELECT e.status INTO current_status FROM entitlements e
     WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku FOR UPDATE;
    IF NOT FOUND THEN
        refusal := 'not granted';
    ELSIF current_status = p_status THEN
        refusal := 'already REVOKED';
    ELSE
        UPDATE entitlements e
           SET status     = p_status,
               version    = e.version + 1,
               updated_at = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond')
         WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku
        RETURNING e.version, e.updated_at INTO new_version, changed_at;
    END IF;
END
$$;

-- Grant or revoke, at most once for each key. `outcome` is APPLIED, REPLAYED or the code of a refusal:
-- ENTITLEMENT_STATE_CONFLICT, IDEMPOTENCY_KEY_CONFLICT or REQUEST_IN_PROGRESS. status_code and body are the answer to
-- send, byte for byte; the last two have none, because they are not kept.
-- A refusal is returned, not raised, so that its audit row and its stored answer stay.
CREATE FUNCTION change_entitlement(
    p_caller text, p_route text, p_key text, p_request_hash text, p_ttl interval, p_lock_wait_ms integer,
    p_status text, p_user_id text, p_sku text, p_reason text, p_purchase_id text,
    p_operation_id uuid, p_trace_id text,
    OUT outcome text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    right_now record;
    event     text := CASE p_status WHEN 'ACTIVE' THEN 'EntitlementGranted' ELSE 'EntitlementRevoked' END;
    detail    jsonb := jsonb_build_object(
        'reason', p_reason, 'purchase_id', p_purchase_id,
        'key_fingerprint', left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 12));
BEGIN
    SELECT b.verdict, b.status_code, b.body INTO outcome, status_code, body
      FROM idempotency_begin(p_caller, p_route, p_key, p_request_hash, p_lock_wait_ms) b;

    IF outcome IN ('REPLAYED', 'REQUEST_IN_PROGRESS') THEN
        RETURN;
    END IF;

    IF outcome = 'PROCEED' THEN
        SELECT * INTO right_now FROM entitlement_transition(p_status, p_user_id, p_sku);
        IF right_now.refusal IS NULL THEN
            outcome     := 'APPLIED';
            status_code := 200;
            body        := '{"user_id":' || to_json(p_user_id)
                        || ',"stock_keeping_unit":' || to_json(p_sku)
                        || ',"status":"' || p_status
                        || '","version":' || right_now.new_version
                        || ',"updated_at":"' || rfc3339(right_now.changed_at) || '"}';
            detail      := detail || jsonb_build_object('version', right_now.new_version);
        ELSE
            outcome     := 'ENTITLEMENT_STATE_CONFLICT';
            status_code := 409;
            body        := '{"code":"ENTITLEMENT_STATE_CONFLICT","message":' || to_json(right_now.refusal) || '}';
            detail      := detail || jsonb_build_object('refusal', right_now.refusal);
        END IF;
        PERFORM idempotency_finish(p_caller, p_route, p_key, p_request_hash, status_code, body, p_ttl);
    END IF;

    INSERT INTO entitlement_audit
           (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
    VALUES (p_operation_id, p_caller, CASE p_status WHEN 'ACTIVE' THEN 'GRANT' ELSE 'REVOKE' END,
            outcome, p_user_id, p_sku, p_trace_id, detail);

    IF outcome = 'APPLIED' THEN
        PERFORM outbox_enqueue(
            p_operation_id, event, entitlement_aggregate_key(p_user_id, p_sku), right_now.new_version,
            jsonb_build_object(
                'event_id', p_operation_id, 'event_type', event, 'occurred_at', rfc3339(right_now.changed_at),
                'user_id', p_user_id, 'stock_keeping_unit', p_sku,
                'source', p_reason, 'source_id', p_purchase_id, 'version', right_now.new_version),
            p_trace_id);
    END IF;
END
$$;
