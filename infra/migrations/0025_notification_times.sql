-- Notifications and their dead letters keep the start and the end of the entitlement, as the event reports them
-- (SPEC K3, D1, Q4). The columns are nullable, so PostgreSQL does not rewrite the tables, and the functions of the
-- previous release can still write them.

ALTER TABLE notifications
    ADD COLUMN starts_at  timestamptz,
    ADD COLUMN expires_at timestamptz;

ALTER TABLE notification_dlq
    ADD COLUMN starts_at  timestamptz,
    ADD COLUMN expires_at timestamptz;
