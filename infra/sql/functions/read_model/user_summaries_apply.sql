-- Applies a change of user_entitlements to user_summaries: `p_before` are rows that are gone or were replaced, `p_after`
-- rows that are new or replace others (G6). The cost depends on the number of these rows, not on the number of a
-- user's entitlements.
--
-- Normally a change is newer than the last one, and becomes the last change. Only a rebuild can remove the last change
-- or replace it with an older one. Then the last change is read again from the rows of the user.
CREATE OR REPLACE FUNCTION user_summaries_apply(
    p_before user_entitlements[], p_after user_entitlements[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM user_summaries_lock();

    INSERT INTO user_summaries (user_id, active, revoked, expired)
    SELECT DISTINCT user_id, 0, 0, 0 FROM unnest(p_after)
        ON CONFLICT (user_id) DO NOTHING;

    WITH changed AS (
        SELECT 1 AS sign, a.* FROM unnest(p_after) AS a
        UNION ALL
        SELECT -1, b.* FROM unnest(p_before) AS b),
    counted AS (
        SELECT user_id,
               coalesce(sum(sign) FILTER (WHERE status = 'ACTIVE'), 0) AS active,
               coalesce(sum(sign) FILTER (WHERE status = 'REVOKED'), 0) AS revoked,
               coalesce(sum(sign) FILTER (WHERE status = 'EXPIRED'), 0) AS expired,
               array_agg(stock_keeping_unit) FILTER (WHERE sign < 0) AS replaced
          FROM changed GROUP BY user_id),
    newest AS (
        SELECT DISTINCT ON (user_id) * FROM unnest(p_after)
         ORDER BY user_id, changed_at DESC, version DESC, stock_keeping_unit)
    UPDATE user_summaries s
       SET active = s.active + c.active,
           revoked = s.revoked + c.revoked,
           expired = s.expired + c.expired,
           (last_stock_keeping_unit, last_status, last_version, last_changed_at) = (
             SELECT stock_keeping_unit, status, version, changed_at
               FROM (
                 SELECT n.stock_keeping_unit, n.status, n.version, n.changed_at
                 UNION ALL
                 SELECT s.last_stock_keeping_unit, s.last_status, s.last_version, s.last_changed_at
                  WHERE s.last_stock_keeping_unit <> ALL (c.replaced) IS NOT FALSE
                 UNION ALL
                 (SELECT r.stock_keeping_unit, r.status, r.version, r.changed_at
                    FROM user_entitlements r
                   WHERE r.user_id = s.user_id AND s.last_stock_keeping_unit = ANY (c.replaced)
                     AND (n.changed_at, n.version) > (s.last_changed_at, s.last_version) IS NOT TRUE
                   ORDER BY r.changed_at DESC, r.version DESC, r.stock_keeping_unit LIMIT 1)) AS candidate
              WHERE stock_keeping_unit IS NOT NULL
              ORDER BY changed_at DESC, version DESC, stock_keeping_unit LIMIT 1)
      FROM counted c LEFT JOIN newest n USING (user_id)
     WHERE s.user_id = c.user_id;
END
$$;

REVOKE EXECUTE ON FUNCTION user_summaries_apply FROM PUBLIC;
GRANT EXECUTE ON FUNCTION user_summaries_apply TO grantwire_functions;
