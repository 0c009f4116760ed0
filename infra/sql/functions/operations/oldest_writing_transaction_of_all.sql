-- Returns what oldest_writing_transaction finds with the privileges of the schema owner, who should have pg_read_all_stats
-- (docs/deploy.md; doctor finds out). So the functions learn one time, and not the statements of other logins.
CREATE OR REPLACE FUNCTION oldest_writing_transaction_of_all() RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER AS $$
    SELECT oldest_writing_transaction()
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION oldest_writing_transaction_of_all SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION oldest_writing_transaction_of_all FROM PUBLIC;
GRANT EXECUTE ON FUNCTION oldest_writing_transaction_of_all TO grantwire_functions;
