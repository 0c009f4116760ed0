-- What user_summaries must contain, computed from all rows (G6). If two entitlements changed at the same time, the higher
-- version and then the name decide, so that the last change is always the same.
CREATE OR REPLACE VIEW user_summaries_expected AS
SELECT DISTINCT ON (user_id) user_id,
       count(*) FILTER (WHERE status = 'ACTIVE') OVER of_user AS active,
       count(*) FILTER (WHERE status = 'REVOKED') OVER of_user AS revoked,
       count(*) FILTER (WHERE status = 'EXPIRED') OVER of_user AS expired,
       stock_keeping_unit AS last_stock_keeping_unit, status AS last_status, version AS last_version,
       changed_at AS last_changed_at
  FROM user_entitlements
WINDOW of_user AS (PARTITION BY user_id)
 ORDER BY user_id, changed_at DESC, version DESC, stock_keeping_unit;

-- Users whose row is wrong. There are none, unless the triggers were disabled.
CREATE OR REPLACE VIEW user_summaries_differences AS
SELECT user_id
  FROM user_summaries_expected e FULL JOIN user_summaries s USING (user_id)
 WHERE (coalesce(e.active, 0), coalesce(e.revoked, 0), coalesce(e.expired, 0), e.last_stock_keeping_unit,
        e.last_status, e.last_version, e.last_changed_at)
    IS DISTINCT FROM
       (s.active, s.revoked, s.expired, s.last_stock_keeping_unit, s.last_status, s.last_version, s.last_changed_at);

GRANT SELECT ON user_summaries_expected, user_summaries_differences TO grantwire_functions;
