-- Returns the error of a message that JetStream no longer delivers.
CREATE OR REPLACE FUNCTION nats_dead_letter_error(p_kind text, p_deliveries integer, p_reason text)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN p_kind || ' after ' || p_deliveries || CASE p_deliveries WHEN 1 THEN ' delivery' ELSE ' deliveries' END
       || coalesce(': ' || p_reason, '');

REVOKE EXECUTE ON FUNCTION nats_dead_letter_error FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nats_dead_letter_error TO grantwire_functions;
