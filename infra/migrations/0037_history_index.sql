-- The index of the audit for the history of an entitlement (SPEC K8), for checks as of a past time, and for comparing events
-- with the audit (G1). It has the columns of the primary key, but only applied changes. The primary key also has the refused
-- operations of an entitlement. There can be millions of them, and a read would go through all of them.
--
-- Changes wait while it is built. To avoid that with a large audit, build the index of each partition before this
-- migration; CREATE INDEX then attaches them (docs/deploy.md).

CREATE INDEX entitlement_audit_history ON entitlement_audit (user_id, stock_keeping_unit, occurred_at, operation_id)
    WHERE outcome = 'APPLIED';
