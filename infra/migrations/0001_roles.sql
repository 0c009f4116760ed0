-- The role of the functions (SPEC E6, A1; ADR 0019): what they may do, and nothing else.
--
-- The owner of this schema migrates it. The functions log in with a role of their own, a member of grantwire_functions,
-- which may neither change the schema nor rewrite what happened.
--
-- There are no default privileges: each file grants what the functions need of what it makes. PUBLIC gets nothing.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'grantwire_functions') THEN
        CREATE ROLE grantwire_functions NOLOGIN;
    END IF;
EXCEPTION
    -- Roles belong to the whole cluster: another database of it was migrated at the same moment.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the role grantwire_functions is missing, and % may not create it', current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Let somebody who may run: CREATE ROLE grantwire_functions NOLOGIN; then migrate again.';
END
$$;

DO $$
DECLARE
    home text := quote_ident(current_schema());
BEGIN
    EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM PUBLIC', home);
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO grantwire_functions', home);
END
$$;
