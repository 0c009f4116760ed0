-- The role grantwire_clients with the privileges of manage_clients (SPEC G3; ADR 0029).
--
-- The functions that serve requests read clients, but cannot create or change them. A stolen login of these functions
-- therefore cannot give itself a token. manage_clients logs in with another role, a member of grantwire_clients.
--
-- The length limits apply to new rows at once. The next migration checks the existing rows, in a transaction of its
-- own: here a table is locked only briefly, and writes continue while its rows are checked.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'grantwire_clients') THEN
        CREATE ROLE grantwire_clients NOLOGIN;
    END IF;
EXCEPTION
    -- Roles belong to the whole cluster, and another database of it can be migrated at the same time.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role grantwire_clients does not exist, and role % is not allowed to create it', current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Ask an administrator to run: CREATE ROLE grantwire_clients NOLOGIN; then migrate again.';
END
$$;

DO $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO grantwire_clients', current_schema());
END
$$;

-- authorize_caller reads these columns and records the last use.
REVOKE ALL ON api_clients FROM grantwire_functions;
GRANT SELECT (client_id, scopes, token_hash, previous_hash, previous_until, expires_at, revoked_at, last_used_at),
      UPDATE (last_used_at)
   ON api_clients TO grantwire_functions;

-- Clients cannot be deleted, and their id, name, scopes and time of creation cannot be updated. A trigger protects
-- revoked_at (infra/sql/after_functions.sql).
GRANT SELECT,
      INSERT (client_id, name, scopes, token_hash, expires_at),
      UPDATE (token_hash, previous_hash, previous_until, rotated_at, expires_at, revoked_at)
   ON api_clients TO grantwire_clients;

-- The functions' role can insert audit rows and stored responses, so it must not be able to fill the disk with one row.
ALTER TABLE entitlement_audit
    ADD CONSTRAINT entitlement_audit_caller_length CHECK (char_length(caller) BETWEEN 1 AND 128) NOT VALID,
    ADD CONSTRAINT entitlement_audit_detail_length CHECK (octet_length(detail::text) <= 8192) NOT VALID;
ALTER TABLE idempotency_keys
    ADD CONSTRAINT idempotency_keys_caller_length CHECK (char_length(caller) BETWEEN 1 AND 128) NOT VALID;
