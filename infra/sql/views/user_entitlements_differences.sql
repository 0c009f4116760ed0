-- Differences between the read model and the system of record (P2). An entitlement is committed before its event is
-- projected, so `missing` and `behind` can mean that an event is still on its way. The other differences are errors; `wrong`
-- includes different times.
CREATE OR REPLACE VIEW user_entitlements_differences AS
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

GRANT SELECT ON user_entitlements_differences TO grantwire_functions;
