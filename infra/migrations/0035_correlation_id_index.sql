-- The index of the audit for traces by correlation id (SPEC T2), and the check of the existing rows against the constraint
-- of the previous migration.
--
-- Changes wait while the index is built. This is one read of the audit: the existing rows are not in the index, because
-- their correlation id is NULL. It is ordered by time like the indexes of 0033.

ALTER TABLE entitlement_audit VALIDATE CONSTRAINT entitlement_audit_correlation_id_length;

CREATE INDEX entitlement_audit_correlation ON entitlement_audit (correlation_id, occurred_at)
    WHERE correlation_id IS NOT NULL;
