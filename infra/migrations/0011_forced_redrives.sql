-- Forced redrives of messages (SPEC G1, Q2). The bridge records only events that the audit has. An event whose month was
-- dropped from the audit is accepted only if an operator has redriven exactly this message with force.

ALTER TABLE notification_nats_dlq ADD COLUMN forced boolean NOT NULL DEFAULT false;

COMMENT ON COLUMN notification_nats_dlq.forced IS
    'Whether an operator has redriven this message with force although the audit no longer has its event. Committed together with the number of the redrive.';
