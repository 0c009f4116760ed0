-- Adds what the receiver responded to an attempt (T2). The last 20 attempts are kept, so that a receiver that is
-- down for days does not make the row longer and longer.
CREATE OR REPLACE FUNCTION notification_responses_add(p_responses jsonb, p_at timestamptz, p_response text)
RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_array_length(p_responses) >= 20 THEN p_responses - 0 ELSE coalesce(p_responses, '[]') END
       || jsonb_build_array(jsonb_build_object('at', rfc3339(p_at), 'response', p_response));

REVOKE EXECUTE ON FUNCTION notification_responses_add FROM PUBLIC;
GRANT EXECUTE ON FUNCTION notification_responses_add TO grantwire_functions;
