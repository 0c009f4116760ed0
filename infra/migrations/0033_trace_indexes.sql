-- Indexes of the audit for traces (SPEC T2): by purchase, by trace id and by the fingerprint of an idempotency key. Event
-- ids contain their time, so the small index on the time finds the row of an event: rows are written in its order. The
-- other indexes are ordered by time, so that the newest rows of one value are found without reading all of them.
-- The functions read the audit only through trace_changes.

CREATE INDEX entitlement_audit_purchase ON entitlement_audit (purchase_id, occurred_at) WHERE purchase_id IS NOT NULL;
CREATE INDEX entitlement_audit_trace ON entitlement_audit (trace_id, occurred_at) WHERE trace_id IS NOT NULL;
CREATE INDEX entitlement_audit_key ON entitlement_audit ((detail->>'key_fingerprint'), occurred_at)
    WHERE detail->>'key_fingerprint' IS NOT NULL;
CREATE INDEX entitlement_audit_time ON entitlement_audit USING brin (occurred_at)
    WITH (pages_per_range = 32, autosummarize = on);

-- A trace by notification or event id finds dead letters of notifications by their event.
CREATE INDEX notification_dlq_event ON notification_dlq (event_id);
