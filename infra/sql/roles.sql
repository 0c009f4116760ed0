-- The two roles whose privileges the functions have (E6, A1, G3; ADR 0019). Neither can log in: the functions
-- log in with members of them, and the owner of this schema is another role. In a deployment administrator.sql has
-- created them; an owner with CREATEROLE creates them here.
--
-- grantwire_functions can neither change the schema nor change or delete audit rows, and only reads clients.
-- grantwire_clients manages clients: a stolen login of the functions that serve requests cannot give itself a token.
--
-- There are no default privileges. The file of each table, view and function grants what the two roles need; PUBLIC has
-- no privileges.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['grantwire_functions', 'grantwire_clients'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            END IF;
        EXCEPTION
            -- Roles belong to the whole cluster, and another database of it can be migrated at the same time.
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % does not exist, and role % is not allowed to create it', name, current_user
                    USING ERRCODE = 'insufficient_privilege',
                          HINT = format('Ask an administrator to run: CREATE ROLE %s NOLOGIN; then migrate again.', name);
        END;
    END LOOP;
END
$$;

DO $$
BEGIN
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO grantwire_functions, grantwire_clients', current_schema());
END
$$;

-- The status compares the version of the schema with that of the code, and names the last migration.
GRANT SELECT (name, checksum) ON schema_migrations, schema_definitions TO grantwire_functions;
