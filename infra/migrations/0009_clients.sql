-- The registered clients of the API (SPEC I7). The id of a client is the caller in idempotency_keys and in the audit.
-- It stays the same when the token is rotated, so a retry with the new token is a replay.

CREATE TABLE api_clients (
    client_id      text        COLLATE "C" PRIMARY KEY,
    name           text        COLLATE "C" NOT NULL,
    scopes         text[]      NOT NULL,
    -- SHA-256 of the token, in hex. The previous token is valid until previous_until, so a rotation needs no downtime.
    token_hash     text        COLLATE "C" NOT NULL,
    previous_hash  text        COLLATE "C",
    previous_until timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    rotated_at     timestamptz,
    expires_at     timestamptz,
    revoked_at     timestamptz,
    -- Exact to about a minute, because not every request updates it.
    last_used_at   timestamptz,
    CONSTRAINT api_clients_id_form CHECK (client_id ~ '^[a-z0-9]{12}$'),
    CONSTRAINT api_clients_name_length CHECK (char_length(name) BETWEEN 1 AND 64),
    CONSTRAINT api_clients_scopes CHECK (
        cardinality(scopes) BETWEEN 1 AND 4
        AND scopes <@ ARRAY['entitlements:write', 'entitlements:read', 'notifications:read', 'ops']),
    CONSTRAINT api_clients_hash_form CHECK (token_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT api_clients_previous CHECK (
        (previous_hash IS NULL) = (previous_until IS NULL) AND coalesce(previous_hash ~ '^[0-9a-f]{64}$', true)),
    CONSTRAINT api_clients_lifetime CHECK (expires_at IS NULL OR expires_at > created_at)
);

-- The name of a revoked client can be used again.
CREATE UNIQUE INDEX api_clients_name ON api_clients (name) WHERE revoked_at IS NULL;

COMMENT ON TABLE api_clients IS 'Service clients of the API. Revoked clients stay, because the audit refers to them.';

-- Clients cannot be deleted, and their id, name and scopes cannot be updated.
GRANT SELECT, INSERT,
      UPDATE (token_hash, previous_hash, previous_until, rotated_at, expires_at, revoked_at, last_used_at)
   ON api_clients TO grantwire_functions;
