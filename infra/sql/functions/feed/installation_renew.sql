-- Makes all cursors of the change feed invalid, and returns the new identity (K9). The schema owner calls it after a
-- restore (docs/runbook-reference.md).
--
-- A restored dump keeps the transaction ids of another cluster, which can be higher than any id of this one. No
-- transaction that this statement sees can have such an id, so these changes leave the feed; the snapshot has them.
CREATE OR REPLACE FUNCTION installation_renew() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE entitlement_audit
       SET transaction_id = NULL
     WHERE outcome = 'APPLIED' AND transaction_id >= pg_snapshot_xmax(pg_current_snapshot());
    UPDATE installation
       SET installation_id = gen_random_uuid(), dropped_in = NULL, dropped_transaction_id = NULL,
           dropped_occurred_at = NULL, dropped_operation_id = NULL;
    RETURN installation_identity();
END
$$;

REVOKE EXECUTE ON FUNCTION installation_renew FROM PUBLIC;
