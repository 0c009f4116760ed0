-- Who may call the API (SPEC I7). A client's id is the caller in idempotency_keys and in the audit, and outlives its
-- tokens: a retry with the rotated token replays.

CREATE TABLE api_clients (
    client_id      text        COLLATE "C" PRIMARY KEY,
    name           text        COLLATE "C" NOT NULL,
    scopes         text[]      NOT NULL,
    -- SHA-256 of the whole token, in hex. Of the token before it until previous_until: rotation needs no downtime.
    token_hash     text        COLLATE "C" NOT NULL,
    previous_hash  text        COLLATE "C",
    previous_until timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    rotated_at     timestamptz,
    expires_at     timestamptz,
    revoked_at     timestamptz,
    -- To about a minute: not every request writes it.
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

-- A revoked client's name may be given to its successor.
CREATE UNIQUE INDEX api_clients_name ON api_clients (name) WHERE revoked_at IS NULL;

COMMENT ON TABLE api_clients IS 'Service clients of the API; a revoked one stays, because the audit names it.';

-- A client that was revoked stays, and keeps its id, its name and its scopes.
GRANT SELECT, INSERT,
      UPDATE (token_hash, previous_hash, previous_until, rotated_at, expires_at, revoked_at, last_used_at)
   ON api_clients TO grantwire_functions;
