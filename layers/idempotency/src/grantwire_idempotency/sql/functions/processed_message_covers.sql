-- Whether the completion of the row makes this mark a duplicate. If either side has no mark, it does.
CREATE OR REPLACE FUNCTION processed_message_covers(m processed_messages, p_mark bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(m.completed_until > p_now, false) AND coalesce(p_mark <= m.completed_mark, true)
$$;

REVOKE EXECUTE ON FUNCTION processed_message_covers FROM PUBLIC;
