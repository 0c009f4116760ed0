-- Records a message in a transaction of the caller, who commits it (C28). The decision is one of:
--   NEW          the message is recorded without a result: write its rows in this transaction
--   DUPLICATE    the message, or a later version of its entity, is recorded: write nothing
--   IN_PROGRESS  as in inbox_begin
--   READ_ONLY    the transaction can record nothing
-- If the transaction is rolled back, or rolled back to an earlier savepoint, the record is gone as well. Any isolation
-- level is allowed; see processed_message_check.
CREATE OR REPLACE FUNCTION inbox_record(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval,
    p_lock_wait_ms integer, p_now timestamptz,
    OUT decision text, OUT free_in interval
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        decision := 'READ_ONLY';
        RETURN;
    END IF;
    SELECT c.decision, c.free_in INTO decision, free_in
      FROM inbox_check(p_key, p_token, p_mark, p_message_id, p_message_type, p_ttl, p_lock_wait_ms, p_now, true) c;
    IF decision = 'NEW' AND NOT processed_message_complete(
            p_key, p_token, p_mark, p_message_id, p_message_type, NULL, p_ttl, p_ttl, p_now) THEN
        RAISE EXCEPTION 'idempotency invariant broken: the message of an inbox was taken' USING ERRCODE = 'GW001';
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION inbox_record FROM PUBLIC;
