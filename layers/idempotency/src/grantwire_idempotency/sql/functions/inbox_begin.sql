-- Records a message in the transaction of its effect (C18). The decision is one of:
--   NEW          the message is recorded: write its rows in this transaction, then call inbox_finish and COMMIT
--   DUPLICATE    the message, or a later version of its entity, is recorded; stored_result is its result
--   IN_PROGRESS  another transaction has held the key for longer than p_lock_wait_ms, or a worker has claimed it
-- The record is written before the rows, so a concurrent transaction with the same key waits for this one and then sees
-- what it committed. If the transaction is rolled back, the record is gone as well.
CREATE OR REPLACE FUNCTION inbox_begin(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval,
    p_lock_wait_ms integer, p_now timestamptz,
    OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT c.decision, c.stored_result, c.free_in, c.fence INTO decision, stored_result, free_in, fence
      FROM inbox_check(p_key, p_token, p_mark, p_message_id, p_message_type, p_ttl, p_lock_wait_ms, p_now, false) c;
    IF decision = 'NEW' THEN
        PERFORM guarded_transaction_begin(p_token);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION inbox_begin FROM PUBLIC;
