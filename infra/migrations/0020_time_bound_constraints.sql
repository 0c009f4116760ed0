-- Checks the existing rows against the constraints of the previous migration, in a transaction of its own: writes
-- continue meanwhile.

ALTER TABLE entitlements VALIDATE CONSTRAINT entitlements_status;
ALTER TABLE entitlements VALIDATE CONSTRAINT entitlements_times;
ALTER TABLE entitlements VALIDATE CONSTRAINT entitlements_expired;
ALTER TABLE entitlements VALIDATE CONSTRAINT entitlements_pending;
ALTER TABLE entitlements VALIDATE CONSTRAINT entitlements_purchase_id_length;
ALTER TABLE entitlement_audit VALIDATE CONSTRAINT entitlement_audit_operation;
ALTER TABLE entitlement_audit VALIDATE CONSTRAINT entitlement_audit_status;
ALTER TABLE user_entitlements VALIDATE CONSTRAINT user_entitlements_status;
ALTER TABLE user_summaries VALIDATE CONSTRAINT user_summaries_counts;
ALTER TABLE user_summaries VALIDATE CONSTRAINT user_summaries_last;
