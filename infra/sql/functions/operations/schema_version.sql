-- Returns the version of the schema that was applied: the number of the last migration, and a hash of all files (T1). The
-- code computes it from its own files in the same way (grantwire.database.migrations).
CREATE OR REPLACE FUNCTION schema_version() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(left(f.name, 4)) FILTER (WHERE f.name ~ '^\d{4}_'), 'baseline') || '-'
           || left(encode(sha256(convert_to(string_agg(f.line, E'\n' ORDER BY f.line COLLATE "C"), 'UTF8')), 'hex'), 12)
      FROM (SELECT m.name, m.name || ' ' || m.checksum AS line FROM schema_migrations m
             UNION ALL
            SELECT d.name, d.name || ' ' || d.checksum FROM schema_definitions d) AS f
$$;

REVOKE EXECUTE ON FUNCTION schema_version FROM PUBLIC;
GRANT EXECUTE ON FUNCTION schema_version TO grantwire_functions;
