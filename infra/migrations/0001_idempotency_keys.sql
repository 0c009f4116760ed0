-- Idempotency of a request lives in the same transaction as its effect (SPEC I1-I8).
--
-- idempotency_begin and idempotency_finish are the only statements that decide about a key. Any handler gets the same
-- guarantee by calling them around its own work; change_entitlement (0004) composes them into one round trip.

CREATE TABLE idempotency_keys (
    caller          text        COLLATE "C" NOT NULL,
    route           text        COLLATE "C" NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    request_hash    text        COLLATE "C" NOT NULL,
    status_code     integer     NOT NULL,
    response_body   text        NOT NULL,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (caller, route, idempotency_key),
    CONSTRAINT idempotency_keys_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 255),
    -- A server fault or a malformed request is never stored: a repeat of it must be able to run (I3).
    CONSTRAINT idempotency_keys_stored_status
        CHECK (status_code BETWEEN 200 AND 299 OR status_code BETWEEN 401 AND 499),
    CONSTRAINT idempotency_keys_lifetime CHECK (expires_at > created_at)
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

COMMENT ON TABLE idempotency_keys IS
    'One row for each request that was answered for good; (caller, route, key) is another key for another caller or route (I7).';
COMMENT ON COLUMN idempotency_keys.request_hash IS
    'Version of the canonical form and SHA-256 of the canonical request, as "v1:<hex>".';

-- What to do with a request that carries this key. One of
--   PROCEED                   the key is free and locked for this transaction: do the work, then call idempotency_finish
--   REPLAYED                  the same request was answered before: status_code and body are that answer
--   IDEMPOTENCY_KEY_CONFLICT  the key was used for another request
--   REQUEST_IN_PROGRESS       somebody else has held the key for longer than p_lock_wait_ms
-- The first read saves the lock for the common replay; a live row with an equal hash can no longer change (I6).
-- Everything else is decided after the lock, by a statement that begins after it: under READ COMMITTED it sees what
-- the previous holder committed. A stronger isolation level would show it an older snapshot and double the effect.
CREATE FUNCTION idempotency_begin(
    p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer,
    OUT verdict text, OUT status_code integer, OUT body text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    stored_hash text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;

    SELECT k.status_code, k.response_body INTO status_code, body
      FROM idempotency_keys k
     WHERE k.caller = p_caller AND k.route = p_route AND k.idempotency_key = p_key
       AND k.expires_at > now() AND k.request_hash = p_request_hash;
    IF FOUND THEN
        verdict := 'REPLAYED';
        RETURN;
    END IF;

    -- Also bounds the waits for row locks in the rest of the transaction.
    PERFORM set_config('lock_timeout', p_lock_wait_ms::text, true);
    BEGIN
        -- First 8 bytes of SHA-256(key) as a signed 64-bit integer (I5).
        PERFORM pg_advisory_xact_lock(
            ('x' || left(encode(sha256(convert_to(p_key, 'UTF8')), 'hex'), 16))::bit(64)::bigint);
    EXCEPTION WHEN lock_not_available THEN
        verdict := 'REQUEST_IN_PROGRESS';
        RETURN;
    END;

    SELECT k.request_hash, k.status_code, k.response_body INTO stored_hash, status_code, body
      FROM idempotency_keys k
     WHERE k.caller = p_caller AND k.route = p_route AND k.idempotency_key = p_key
       AND k.expires_at > now();
    IF NOT FOUND THEN
        verdict := 'PROCEED';
    ELSIF stored_hash = p_request_hash THEN
        verdict := 'REPLAYED';
    ELSE
        verdict := 'IDEMPOTENCY_KEY_CONFLICT';
        status_code := NULL;
        body := NULL;
    END IF;
END
$$;

-- Keeps the answer for later repeats. Only an expired row may be replaced; anything else means that the lock or the
-- read after it was bypassed, and no answer is better than a doubled effect (I6). now() is the one that begin saw (I4).
CREATE FUNCTION idempotency_finish(
    p_caller text, p_route text, p_key text, p_request_hash text,
    p_status_code integer, p_body text, p_ttl interval
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
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
