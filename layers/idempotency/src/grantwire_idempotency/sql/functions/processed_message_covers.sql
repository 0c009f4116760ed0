-- Whether a completed record makes this mark a duplicate; without a mark on either side it does.
CREATE OR REPLACE FUNCTION processed_message_covers(m processed_messages, p_mark bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(m.completed_until > p_now, false) AND coalesce(p_mark <= m.completed_mark, true)
$$;

REVOKE EXECUTE ON FUNCTION processed_message_covers FROM PUBLIC;
