-- Limits per caller (SPEC G6; ADR 0033): a token bucket for each client, and the limits of single clients.
--
-- The bucket is unlogged: after a crash or a failover it is empty of rows, and every client starts with a full bucket.
-- So a request that takes tokens neither writes WAL nor waits for the disk.

ALTER TABLE api_clients
    -- Requests per second and the size of the bucket; NULL means the default of the installation.
    ADD COLUMN rate_limit  integer,
    ADD COLUMN burst_limit integer,
    ADD CONSTRAINT api_clients_rate_limit CHECK (rate_limit BETWEEN 1 AND 1000000),
    ADD CONSTRAINT api_clients_burst_limit CHECK (burst_limit BETWEEN 1 AND 1000000);

CREATE UNLOGGED TABLE client_buckets (
    client_id text             COLLATE "C" PRIMARY KEY,
    -- The tokens that the bucket had at filled_at. Its refill is computed when tokens are taken.
    tokens    double precision NOT NULL,
    filled_at timestamptz      NOT NULL,
    CONSTRAINT client_buckets_tokens CHECK (tokens >= 0)
) WITH (fillfactor = 20); -- room for HOT updates: one client's row changes many times a second

COMMENT ON TABLE client_buckets IS 'Token buckets of the callers. Deleting a row fills the bucket of that caller.';

-- The functions read the limits, and the ids of the newest clients. Only the administration of clients changes limits.
GRANT SELECT (created_at, rate_limit, burst_limit) ON api_clients TO grantwire_functions;
GRANT INSERT (rate_limit, burst_limit), UPDATE (rate_limit, burst_limit) ON api_clients TO grantwire_clients;
GRANT SELECT, INSERT, UPDATE (tokens, filled_at) ON client_buckets TO grantwire_functions;

-- A change of limits is recorded like every other action on a client.
ALTER TABLE operator_actions
    DROP CONSTRAINT operator_actions_action,
    ADD CONSTRAINT operator_actions_action CHECK (
        CASE kind WHEN 'client' THEN action IN ('create', 'rotate', 'limits', 'revoke')
                  WHEN 'read_model' THEN action = 'rebuild'
                  WHEN 'outbox' THEN action IN ('redrive', 'discard')
                  WHEN 'notification' THEN action IN ('redrive', 'discard')
                  WHEN 'nats' THEN action IN ('redrive', 'discard')
                  ELSE false END);
