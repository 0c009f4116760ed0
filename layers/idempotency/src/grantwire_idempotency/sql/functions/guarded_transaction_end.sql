-- Ends the protection of guarded_transaction_begin, before the COMMIT. Raises SQLSTATE GW002 if the transaction is not the
-- one that the guard began: the work has ended that one, or the caller has never begun this request in it.
CREATE OR REPLACE FUNCTION guarded_transaction_end(p_guard text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM guarded_transactions WHERE guard = p_guard;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no guard is open: `finish` needs `begin`, or the work of `run` has ended the transaction'
            USING ERRCODE = 'GW002';
    END IF;
    PERFORM set_config('idempotency.guard', '', true);
END
$$;

REVOKE EXECUTE ON FUNCTION guarded_transaction_end FROM PUBLIC;
