-- Returns an error without the parts that differ from one dead letter to the next: UUIDs, long numbers, fractions. Short
-- numbers stay, because they are statuses. PostgreSQL inlines this function and the next one into the views.
CREATE OR REPLACE FUNCTION dead_letter_cause(p_error text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN left(regexp_replace(regexp_replace(coalesce(nullif(p_error, ''), 'no error was recorded'),
              '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}', '<id>', 'g'),
              '\d+\.\d+|\d{4,}', '<n>', 'g'), 200);

REVOKE EXECUTE ON FUNCTION dead_letter_cause FROM PUBLIC;
GRANT EXECUTE ON FUNCTION dead_letter_cause TO grantwire_functions;
