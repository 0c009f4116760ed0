-- Stored responses of requests, written in the transaction of the effect (SPEC I1-I8). Only idempotency_begin and
-- idempotency_finish decide about a key.

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
    -- A malformed request (400) and a fault (5xx) are never stored, so that a repeat runs (I3).
    CONSTRAINT idempotency_keys_stored_status
        CHECK (status_code BETWEEN 200 AND 299 OR status_code BETWEEN 401 AND 499),
    CONSTRAINT idempotency_keys_lifetime CHECK (expires_at > created_at)
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

COMMENT ON TABLE idempotency_keys IS
    'One row for each request with a stored response. A key is scoped by caller and route (I7).';
COMMENT ON COLUMN idempotency_keys.request_hash IS
    'Version of the canonical form and SHA-256 of the canonical request, as "v1:<hex>".';
