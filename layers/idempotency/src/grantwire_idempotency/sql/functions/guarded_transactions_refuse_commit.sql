-- Refuses the COMMIT of a transaction in which a guard is open (C19, C28). A deferred trigger runs at the COMMIT, and its
-- error rolls the whole transaction back.
CREATE OR REPLACE FUNCTION guarded_transactions_refuse_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM guarded_transactions g WHERE g.guard = NEW.guard) THEN
        RAISE EXCEPTION 'a guard is open in this transaction: `begin` needs `finish`, and the work of `run` must not commit'
            USING ERRCODE = 'GW002';
    END IF;
    RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS guarded_transactions_finished ON guarded_transactions;

CREATE CONSTRAINT TRIGGER guarded_transactions_finished AFTER INSERT ON guarded_transactions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION guarded_transactions_refuse_commit();

REVOKE EXECUTE ON FUNCTION guarded_transactions_refuse_commit FROM PUBLIC;
