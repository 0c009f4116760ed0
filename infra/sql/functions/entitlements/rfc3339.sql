-- Formats a time in RFC 3339, in UTC with microseconds. Responses and events contain times only in this format.
CREATE OR REPLACE FUNCTION rfc3339(p_time timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

REVOKE EXECUTE ON FUNCTION rfc3339 FROM PUBLIC;
GRANT EXECUTE ON FUNCTION rfc3339 TO grantwire_functions;
