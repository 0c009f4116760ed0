-- The registered clients of the API (I7), and their token buckets (G6; ADR 0033). The id of a client is the caller in
-- idempotency_keys and in the audit. It stays the same when the token is rotated, so a retry with the new token is a replay.

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
    -- Requests per second and the size of the bucket; NULL means the default of the installation.
    rate_limit     integer,
    burst_limit    integer,
    -- The client that created this one through the API (G11; ADR 0048). NULL: an operator with access to the database did. It
    -- is never updated, so the clients are trees.
    created_by     text        COLLATE "C" REFERENCES api_clients,
    CONSTRAINT api_clients_id_form CHECK (client_id ~ '^[a-z0-9]{12}$'),
    CONSTRAINT api_clients_name_length CHECK (char_length(name) BETWEEN 1 AND 64),
    CONSTRAINT api_clients_scopes CHECK (
        cardinality(scopes) BETWEEN 1 AND 8
        AND scopes <@ ARRAY['entitlements:write', 'entitlements:read', 'notifications:read', 'changes:read', 'ops:read',
                            'ops:write', 'clients:read', 'clients:write']),
    CONSTRAINT api_clients_hash_form CHECK (token_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT api_clients_previous CHECK (
        (previous_hash IS NULL) = (previous_until IS NULL) AND coalesce(previous_hash ~ '^[0-9a-f]{64}$', true)),
    CONSTRAINT api_clients_lifetime CHECK (expires_at IS NULL OR expires_at > created_at),
    CONSTRAINT api_clients_creator CHECK (created_by <> client_id),
    CONSTRAINT api_clients_rate_limit CHECK (rate_limit BETWEEN 1 AND 1000000),
    CONSTRAINT api_clients_burst_limit CHECK (burst_limit BETWEEN 1 AND 1000000)
);

-- The name of a revoked client can be used again.
CREATE UNIQUE INDEX api_clients_name ON api_clients (name) WHERE revoked_at IS NULL;
-- For the status.
CREATE INDEX api_clients_expires_at ON api_clients (expires_at) WHERE revoked_at IS NULL;
-- For the clients below another one.
CREATE INDEX api_clients_created_by ON api_clients (created_by);

COMMENT ON TABLE api_clients IS 'Service clients of the API. Revoked clients stay, because the audit refers to them.';

-- authorize_caller reads these columns and records the last use. The functions read the ids of the newest clients; a client
-- reads its own row over the API, and the status names clients that expire soon (T10).
GRANT SELECT (client_id, name, scopes, token_hash, previous_hash, previous_until, created_at, expires_at, revoked_at,
              last_used_at, rate_limit, burst_limit, created_by),
      UPDATE (last_used_at)
   ON api_clients TO grantwire_functions;

-- Clients cannot be deleted, and their id, name, scopes, creator and time of creation cannot be updated. A trigger protects
-- revoked_at (infra/sql/triggers.sql).
GRANT SELECT,
      INSERT (client_id, name, scopes, token_hash, expires_at, rate_limit, burst_limit, created_by),
      UPDATE (token_hash, previous_hash, previous_until, rotated_at, expires_at, revoked_at, rate_limit, burst_limit)
   ON api_clients TO grantwire_clients;

-- The buckets are unlogged: after a crash or a failover the table is empty, and every client starts with a full bucket. So
-- a request that takes tokens neither writes WAL nor waits for the disk.
CREATE UNLOGGED TABLE client_buckets (
    client_id text             COLLATE "C" PRIMARY KEY,
    -- The tokens that the bucket had at filled_at. Its refill is computed when tokens are taken.
    tokens    double precision NOT NULL,
    filled_at timestamptz      NOT NULL,
    CONSTRAINT client_buckets_tokens CHECK (tokens >= 0)
) WITH (fillfactor = 20); -- room for HOT updates: one client's row changes many times a second

COMMENT ON TABLE client_buckets IS 'Token buckets of the callers. Deleting a row fills the bucket of that caller.';

-- operate_clients serves requests with the role of manage_clients, and counts the requests of its callers.
GRANT SELECT, INSERT, UPDATE (tokens, filled_at) ON client_buckets TO grantwire_functions, grantwire_clients;
