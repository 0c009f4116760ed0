-- One row for each user, with the counts and the last change of the summary (SPEC G6, P1; ADR 0033), so that the cost of
-- a summary does not depend on the number of entitlements. Triggers on user_entitlements maintain it in the transaction
-- of every change; infra/sql/after_functions.sql creates them, and fills the table at the same time.

CREATE TABLE user_summaries (
    user_id                 text        COLLATE "C" PRIMARY KEY,
    active                  bigint      NOT NULL,
    revoked                 bigint      NOT NULL,
    -- The entitlement that changed last; NULL if the user has none.
    last_stock_keeping_unit text        COLLATE "C",
    last_status             text,
    last_version            bigint,
    last_changed_at         timestamptz,
    CONSTRAINT user_summaries_counts CHECK (active >= 0 AND revoked >= 0),
    CONSTRAINT user_summaries_last CHECK (
        num_nulls(last_stock_keeping_unit, last_status, last_version, last_changed_at)
        = CASE active + revoked WHEN 0 THEN 4 ELSE 0 END)
) WITH (fillfactor = 70);

-- Lists the active entitlements of a user in pages, without reading the revoked ones.
CREATE INDEX user_entitlements_active ON user_entitlements (user_id, stock_keeping_unit) WHERE status = 'ACTIVE';

GRANT SELECT, INSERT, UPDATE ON user_summaries TO grantwire_functions;

-- What user_summaries must contain, computed from all rows. If two entitlements changed at the same time, the higher
-- version and then the name decide, so that the last change is always the same.
CREATE VIEW user_summaries_expected AS
SELECT DISTINCT ON (user_id) user_id,
       count(*) FILTER (WHERE status = 'ACTIVE') OVER of_user AS active,
       count(*) FILTER (WHERE status = 'REVOKED') OVER of_user AS revoked,
       stock_keeping_unit AS last_stock_keeping_unit, status AS last_status, version AS last_version,
       changed_at AS last_changed_at
  FROM user_entitlements
WINDOW of_user AS (PARTITION BY user_id)
 ORDER BY user_id, changed_at DESC, version DESC, stock_keeping_unit;

-- Users whose row is wrong. There are none, unless the triggers were disabled.
CREATE VIEW user_summaries_differences AS
SELECT user_id
  FROM user_summaries_expected e FULL JOIN user_summaries s USING (user_id)
 WHERE (coalesce(e.active, 0), coalesce(e.revoked, 0), e.last_stock_keeping_unit, e.last_status, e.last_version,
        e.last_changed_at)
    IS DISTINCT FROM
       (s.active, s.revoked, s.last_stock_keeping_unit, s.last_status, s.last_version, s.last_changed_at);

GRANT SELECT ON user_summaries_expected, user_summaries_differences TO grantwire_functions;
