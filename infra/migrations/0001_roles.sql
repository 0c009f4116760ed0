-- The role grantwire_functions with the privileges of the functions (SPEC E6, A1; ADR 0019).
--
-- The owner of this schema runs migrations. The functions log in with another role, a member of grantwire_functions,
-- which can neither change the schema nor change or delete audit rows.
--
-- There are no default privileges. Each migration grants what the functions need; PUBLIC has no privileges.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'grantwire_functions') THEN
        CREATE ROLE grantwire_functions NOLOGIN;
    END IF;
EXCEPTION
    -- Roles belong to the whole cluster, and another database of it can be migrated at the same time.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role grantwire_functions does not exist, and role % is not allowed to create it', current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Ask an administrator to run: CREATE ROLE grantwire_functions NOLOGIN; then migrate again.';
END
$$;

DO $$
DECLARE
    schema_name text := quote_ident(current_schema());
BEGIN
    EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM PUBLIC', schema_name);
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO grantwire_functions', schema_name);
END
$$;
