-- Renders an entitlement's own fields as the members of a JSON object, each after a comma. Every response that shows an
-- entitlement uses it: change, list, check, history, feed, snapshot and notifications. A field that is not set is left
-- out, or null with p_nulls.
--
-- p_row is a row of `entitlements` or of `entitlement_audit`, which have the same columns for these fields. The function
-- is one expression, so that PostgreSQL inlines it into the statement.
CREATE OR REPLACE FUNCTION entitlement_fields(p_row anyelement, p_nulls boolean)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT coalesce(',"starts_at":"' || rfc3339((p_row).starts_at) || '"',
                CASE WHEN p_nulls THEN ',"starts_at":null' ELSE '' END)
    || coalesce(',"expires_at":"' || rfc3339((p_row).expires_at) || '"',
                CASE WHEN p_nulls THEN ',"expires_at":null' ELSE '' END)
$$;

REVOKE EXECUTE ON FUNCTION entitlement_fields FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_fields TO grantwire_functions;
