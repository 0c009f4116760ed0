-- Claims a key (C1, C4). The decision is one of:
--   NEW          the key is claimed for p_token until p_ttl from now
--   DUPLICATE    the key is completed at this mark or a later one; stored_result is its result
--   IN_PROGRESS  another run has claimed the key, and its claim expires after free_in
-- fence is the fencing number of the claim, and last_error the live failure of the key. stored_hash is the content hash of
-- the run that has completed or claimed the key with the same mark.
-- One round trip. It is safe to send the call again after a lost connection, because the token identifies the claim.
-- The SELECT finds a duplicate without a lock. Every other decision is made by the INSERT under the row lock: under READ
-- COMMITTED it waits for a concurrent transaction and then sees what that one committed. If the INSERT changes nothing,
-- the loop reads the row again to find the reason.
-- p_any_isolation allows a stricter isolation level: a key that another transaction has taken since the snapshot raises
-- SQLSTATE 40001 (serialization_failure) then, so the caller must repeat its transaction.
-- CREATE OR REPLACE cannot change the columns that an older version returned.
CREATE OR REPLACE FUNCTION processed_message_check(
    p_key text, p_token text, p_mark bigint, p_message_id text, p_message_type text, p_ttl interval,
    p_now timestamptz, p_hash text DEFAULT NULL, p_any_isolation boolean DEFAULT false,
    OUT decision text, OUT stored_result text, OUT free_in interval, OUT fence bigint, OUT last_error text,
    OUT stored_hash text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment  timestamptz;
    message processed_messages;
BEGIN
    IF NOT p_any_isolation AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    LOOP
        moment := coalesce(p_now, clock_timestamp());
        SELECT m.* INTO message
          FROM processed_messages m
         WHERE m.idempotency_key = p_key AND processed_message_taken(m, p_token, p_mark, moment);
        IF FOUND AND processed_message_covers(message, p_mark, moment) THEN
            decision := 'DUPLICATE';
            stored_result := CASE WHEN coalesce(message.result_until, 'infinity') > moment THEN message.result END;
            stored_hash := CASE WHEN message.completed_mark IS NOT DISTINCT FROM p_mark THEN message.completed_hash END;
            RETURN;
        ELSIF FOUND THEN
            decision := 'IN_PROGRESS';
            free_in := message.claimed_until - moment;
            stored_hash := CASE WHEN message.claimed_mark IS NOT DISTINCT FROM p_mark THEN message.claimed_hash END;
            RETURN;
        END IF;

        INSERT INTO processed_messages AS m
               (idempotency_key, message_id, message_type, status, started_at, expires_at, created_at, updated_at,
                claimed_by, claimed_mark, claimed_hash, claimed_until)
        VALUES (p_key, p_message_id, p_message_type, 'processing', moment, moment + p_ttl, moment, moment,
                p_token, p_mark, p_hash, moment + p_ttl)
        ON CONFLICT (idempotency_key) DO UPDATE
           SET message_id    = EXCLUDED.message_id,
               message_type  = EXCLUDED.message_type,
               status        = EXCLUDED.status,
               started_at    = EXCLUDED.started_at,
               expires_at    = greatest(EXCLUDED.claimed_until, m.completed_until, m.failed_until),
               updated_at    = EXCLUDED.updated_at,
               claimed_by    = EXCLUDED.claimed_by,
               claimed_mark  = EXCLUDED.claimed_mark,
               claimed_hash  = EXCLUDED.claimed_hash,
               claimed_until = EXCLUDED.claimed_until
         WHERE NOT processed_message_taken(m, p_token, p_mark, moment)
        -- The number is drawn when the row is written. One that VALUES drew would be older than the number of a run for
        -- which the INSERT waited, if the row of that run is deleted.
        RETURNING nextval('idempotency_fences'), CASE WHEN m.failed_until > moment THEN m.error END INTO fence, last_error;
        IF FOUND THEN
            decision := 'NEW';
            RETURN;
        END IF;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION processed_message_check FROM PUBLIC;
