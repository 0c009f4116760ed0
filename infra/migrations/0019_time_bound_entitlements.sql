-- Entitlements with a start and an end (SPEC K3-K5; ADR 0038).
--
-- The stored status is ACTIVE, REVOKED or EXPIRED. SCHEDULED, and an end that no worker has recorded yet, are computed
-- by the SQL function entitlement_state from the two times and the clock. So an entitlement ends on time although no
-- worker runs. The worker expire_entitlements records start, notice and end as events with a version of their own.
--
-- All columns are nullable or have a constant default, so PostgreSQL does not rewrite the tables. The new constraints of
-- the large tables are checked in the next migration, as in 0012.

ALTER TABLE entitlements
    -- The start, if it was in the future when the entitlement was granted, or the time of the grant; NULL: not limited.
    ADD COLUMN starts_at         timestamptz,
    -- The end without grace; NULL: no end.
    ADD COLUMN expires_at        timestamptz,
    -- The purchase that set the two times; events of time carry it. NULL in rows from before this migration.
    ADD COLUMN purchase_id       text,
    -- Whether the event EntitlementStarted is still to be recorded.
    ADD COLUMN start_pending     boolean NOT NULL DEFAULT false,
    -- Whether the event EntitlementExpiring is still to be recorded for this end.
    ADD COLUMN expiring_pending  boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT entitlements_status,
    ADD CONSTRAINT entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED', 'EXPIRED')) NOT VALID,
    ADD CONSTRAINT entitlements_times CHECK (expires_at > starts_at) NOT VALID,
    ADD CONSTRAINT entitlements_expired CHECK (status <> 'EXPIRED' OR expires_at IS NOT NULL) NOT VALID,
    ADD CONSTRAINT entitlements_pending CHECK (
        (NOT start_pending OR (status = 'ACTIVE' AND starts_at IS NOT NULL AND purchase_id IS NOT NULL))
        AND (NOT expiring_pending OR (status = 'ACTIVE' AND expires_at IS NOT NULL AND purchase_id IS NOT NULL))) NOT VALID,
    ADD CONSTRAINT entitlements_purchase_id_length CHECK (char_length(purchase_id) BETWEEN 1 AND 128) NOT VALID;

COMMENT ON COLUMN entitlements.status IS 'The recorded status. Readers use the SQL function entitlement_state.';

-- For the worker: what starts, what expires soon, what ends. Rows without times are in none of them. Grace and notice are
-- settings, so no index contains them.
CREATE INDEX entitlements_starting ON entitlements (starts_at) WHERE start_pending;
CREATE INDEX entitlements_expiring ON entitlements (expires_at) WHERE expiring_pending;
CREATE INDEX entitlements_ending ON entitlements (expires_at) WHERE status = 'ACTIVE' AND expires_at IS NOT NULL;

GRANT UPDATE (starts_at, expires_at, purchase_id, start_pending, expiring_pending) ON entitlements TO grantwire_functions;

-- The audit keeps the times that a change set. EXTEND moves or removes an end. START, EXPIRING and EXPIRE are events of
-- time, which have the caller `grantwire`.
ALTER TABLE entitlement_audit
    ADD COLUMN starts_at  timestamptz,
    ADD COLUMN expires_at timestamptz,
    DROP CONSTRAINT entitlement_audit_operation,
    DROP CONSTRAINT entitlement_audit_status,
    ADD CONSTRAINT entitlement_audit_operation
        CHECK (operation IN ('GRANT', 'REVOKE', 'EXTEND', 'START', 'EXPIRING', 'EXPIRE')) NOT VALID,
    ADD CONSTRAINT entitlement_audit_status CHECK (status IN ('ACTIVE', 'REVOKED', 'EXPIRED')) NOT VALID;

COMMENT ON COLUMN entitlement_audit.starts_at IS 'The start of the entitlement after the change, if it has one.';
COMMENT ON COLUMN entitlement_audit.expires_at IS 'The end of the entitlement after the change, if it has one.';

GRANT INSERT (starts_at, expires_at) ON entitlement_audit TO grantwire_functions;

-- The read model has the same columns, so that a summary is exact before the worker has recorded a start or an end.
ALTER TABLE user_entitlements
    ADD COLUMN starts_at  timestamptz,
    ADD COLUMN expires_at timestamptz,
    DROP CONSTRAINT user_entitlements_status,
    ADD CONSTRAINT user_entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED', 'EXPIRED')) NOT VALID;

-- Entitlements of a user that are scheduled, and those that have ended but are not recorded as EXPIRED.
CREATE INDEX user_entitlements_starting ON user_entitlements (user_id, starts_at)
    WHERE status = 'ACTIVE' AND starts_at IS NOT NULL;
CREATE INDEX user_entitlements_ending ON user_entitlements (user_id, expires_at)
    WHERE status = 'ACTIVE' AND expires_at IS NOT NULL;

GRANT UPDATE (starts_at, expires_at) ON user_entitlements TO grantwire_functions;

ALTER TABLE user_summaries
    ADD COLUMN expired bigint NOT NULL DEFAULT 0,
    DROP CONSTRAINT user_summaries_counts,
    DROP CONSTRAINT user_summaries_last,
    ADD CONSTRAINT user_summaries_counts CHECK (active >= 0 AND revoked >= 0 AND expired >= 0) NOT VALID,
    ADD CONSTRAINT user_summaries_last CHECK (
        num_nulls(last_stock_keeping_unit, last_status, last_version, last_changed_at)
        = CASE active + revoked + expired WHEN 0 THEN 4 ELSE 0 END) NOT VALID;

-- The views gain the new columns. `wrong` includes different times.
DROP VIEW user_summaries_differences;
DROP VIEW user_summaries_expected;
DROP VIEW user_entitlements_differences;

CREATE VIEW user_entitlements_differences AS
SELECT user_id, stock_keeping_unit,
       CASE WHEN r.version IS NULL THEN 'missing'
            WHEN e.version IS NULL THEN 'extra'
            WHEN r.version < e.version THEN 'behind'
            WHEN r.version > e.version THEN 'ahead'
            ELSE 'wrong' END AS difference,
       e.status, e.version, e.updated_at, e.starts_at, e.expires_at,
       r.status AS seen_status, r.version AS seen_version, r.changed_at AS seen_changed_at,
       r.starts_at AS seen_starts_at, r.expires_at AS seen_expires_at
  FROM entitlements e FULL JOIN user_entitlements r USING (user_id, stock_keeping_unit)
 WHERE (e.status, e.version, e.updated_at, e.starts_at, e.expires_at)
    IS DISTINCT FROM (r.status, r.version, r.changed_at, r.starts_at, r.expires_at);

CREATE VIEW user_summaries_expected AS
SELECT DISTINCT ON (user_id) user_id,
       count(*) FILTER (WHERE status = 'ACTIVE') OVER of_user AS active,
       count(*) FILTER (WHERE status = 'REVOKED') OVER of_user AS revoked,
       stock_keeping_unit AS last_stock_keeping_unit, status AS last_status, version AS last_version,
       changed_at AS last_changed_at,
       count(*) FILTER (WHERE status = 'EXPIRED') OVER of_user AS expired
  FROM user_entitlements
WINDOW of_user AS (PARTITION BY user_id)
 ORDER BY user_id, changed_at DESC, version DESC, stock_keeping_unit;

CREATE VIEW user_summaries_differences AS
SELECT user_id
  FROM user_summaries_expected e FULL JOIN user_summaries s USING (user_id)
 WHERE (coalesce(e.active, 0), coalesce(e.revoked, 0), coalesce(e.expired, 0), e.last_stock_keeping_unit,
        e.last_status, e.last_version, e.last_changed_at)
    IS DISTINCT FROM
       (s.active, s.revoked, s.expired, s.last_stock_keeping_unit, s.last_status, s.last_version, s.last_changed_at);

GRANT SELECT ON user_entitlements_differences, user_summaries_expected, user_summaries_differences
   TO grantwire_functions;
