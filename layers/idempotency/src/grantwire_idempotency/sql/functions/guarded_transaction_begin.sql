-- Protects the transaction of a guard (C18, C19) until guarded_transaction_end: a COMMIT in between fails, and a
-- second guard in the same transaction raises SQLSTATE GW002.
CREATE OR REPLACE FUNCTION guarded_transaction_begin(p_guard text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF coalesce(current_setting('idempotency.guard', true), '') <> '' THEN
        RAISE EXCEPTION 'a guard is already open in this transaction: guards cannot be nested'
            USING ERRCODE = 'GW002';
    END IF;
    PERFORM set_config('idempotency.guard', p_guard, true);
    INSERT INTO guarded_transactions (guard) VALUES (p_guard);
END
$$;

REVOKE EXECUTE ON FUNCTION guarded_transaction_begin FROM PUBLIC;
