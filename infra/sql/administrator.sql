-- What the administrator of the PostgreSQL cluster runs once, before the first migration (J2; ADR 0019): the database, its
-- owner, and the roles that the functions log in as. The administrator needs CREATEDB and CREATEROLE, and no superuser, as
-- on RDS and Aurora. It can be run again: then it only adds what is missing, and CREATE DATABASE reports that the database
-- exists.
--
-- No password is in this file. Set them afterwards with \password of psql, which sends only a hash to the server.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'grantwire LOGIN',                     -- owns the schema and runs the migrations
        'grantwire_functions NOLOGIN',         -- migrations grant it the privileges of the functions
        'grantwire_service LOGIN',             -- the functions log in as this member of grantwire_functions
        'grantwire_clients NOLOGIN',           -- migrations grant it the privileges of manage_clients
        'grantwire_clients_service LOGIN'      -- manage_clients and operate_clients log in as this member of it
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = split_part(name, ' ', 1)) THEN
            EXECUTE 'CREATE ROLE ' || name;
        END IF;
    END LOOP;
END
$$;

GRANT grantwire_functions TO grantwire_service;
GRANT grantwire_clients TO grantwire_clients_service;

-- Only a superuser can create a database for a role of which it is not a member.
GRANT grantwire TO CURRENT_USER;
CREATE DATABASE grantwire OWNER grantwire;
GRANT CONNECT ON DATABASE grantwire TO grantwire_service, grantwire_clients_service;

-- The status sees the transactions of every login. The administrator of RDS may grant pg_monitor, which includes it.
DO $$
BEGIN
    GRANT pg_read_all_stats TO grantwire;
EXCEPTION WHEN insufficient_privilege THEN
    BEGIN
        GRANT pg_monitor TO grantwire;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'role % may grant neither pg_read_all_stats nor pg_monitor', current_user
            USING HINT = 'The status then sees no open transactions of other logins. Ask a superuser to grant one of them.';
    END;
END
$$;

-- By default every role may connect to every database of the cluster. This keeps a stolen login out of the others.
DO $$
DECLARE
    name text;
    is_owner boolean;
BEGIN
    FOR name, is_owner IN
        SELECT datname, pg_has_role(datdba, 'USAGE') FROM pg_database
         WHERE datname IN ('grantwire', 'postgres', 'template1')
    LOOP
        IF is_owner THEN
            EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', name);
        ELSE
            RAISE WARNING 'every role may still connect to the database %, which % does not own', name, current_user;
        END IF;
    END LOOP;
END
$$;
