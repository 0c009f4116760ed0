-- Ends the protection of guarded_transaction_begin, directly before the COMMIT of the guard. Raises SQLSTATE GW002 if the
-- transaction is not the one that the guard began: the work has ended that one.
CREATE OR REPLACE FUNCTION guarded_transaction_end(p_guard text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM guarded_transactions WHERE guard = p_guard;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the guarded work has ended the transaction of its guard' USING ERRCODE = 'GW002';
    END IF;
    PERFORM set_config('idempotency.guard', '', true);
END
$$;

REVOKE EXECUTE ON FUNCTION guarded_transaction_end FROM PUBLIC;
