-- Refuses the COMMIT of a transaction whose guard has not ended it (C19). A deferred trigger runs at the COMMIT, and
-- its error rolls the whole transaction back.
CREATE OR REPLACE FUNCTION guarded_transactions_refuse_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM guarded_transactions g WHERE g.guard = NEW.guard) THEN
        RAISE EXCEPTION 'the guarded work must not commit the transaction of its guard' USING ERRCODE = 'GW002';
    END IF;
    RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS guarded_transactions_finished ON guarded_transactions;

CREATE CONSTRAINT TRIGGER guarded_transactions_finished AFTER INSERT ON guarded_transactions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION guarded_transactions_refuse_commit();

REVOKE EXECUTE ON FUNCTION guarded_transactions_refuse_commit FROM PUBLIC;
