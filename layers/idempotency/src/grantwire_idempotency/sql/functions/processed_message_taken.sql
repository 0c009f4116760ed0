-- Whether the key belongs to another run: a live claim with another token, or a completed record that covers this
-- mark. The one rule by which a claim is granted, a result is taken and a failure is noted.
CREATE OR REPLACE FUNCTION processed_message_taken(m processed_messages, p_token text, p_mark bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(m.claimed_until > p_now AND m.claimed_by <> p_token, false)
        OR processed_message_covers(m, p_mark, p_now)
$$;

REVOKE EXECUTE ON FUNCTION processed_message_taken FROM PUBLIC;
