-- Whether another run has the key: a live claim with another token, or a completion that covers this mark. Claiming,
-- completing and failing a key all use this rule.
CREATE OR REPLACE FUNCTION processed_message_taken(m processed_messages, p_token text, p_mark bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(m.claimed_until > p_now AND m.claimed_by <> p_token, false)
        OR processed_message_covers(m, p_mark, p_now)
$$;

REVOKE EXECUTE ON FUNCTION processed_message_taken FROM PUBLIC;
