-- Corrects user_summaries and returns how many users were wrong (G6, P2). It is safe while events are processed: a
-- row is computed again after the lock is held. A change that has not committed by then waits for the lock, and is
-- applied afterwards.
CREATE OR REPLACE FUNCTION user_summaries_repair() RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Without the lock, because this reads all rows.
    suspects text[] := ARRAY(SELECT user_id FROM user_summaries_differences);
    repaired integer := 0;
BEGIN
    IF cardinality(suspects) > 0 THEN
        PERFORM user_summaries_lock();
        INSERT INTO user_summaries AS s
               (user_id, active, revoked, expired, last_stock_keeping_unit, last_status, last_version, last_changed_at)
        SELECT u.user_id, coalesce(e.active, 0), coalesce(e.revoked, 0), coalesce(e.expired, 0),
               e.last_stock_keeping_unit, e.last_status, e.last_version, e.last_changed_at
          FROM unnest(suspects) AS u (user_id) LEFT JOIN user_summaries_expected e USING (user_id)
            ON CONFLICT (user_id) DO UPDATE
           SET (active, revoked, expired, last_stock_keeping_unit, last_status, last_version, last_changed_at)
             = (EXCLUDED.active, EXCLUDED.revoked, EXCLUDED.expired, EXCLUDED.last_stock_keeping_unit,
                EXCLUDED.last_status, EXCLUDED.last_version, EXCLUDED.last_changed_at)
         WHERE s IS DISTINCT FROM EXCLUDED;
        GET DIAGNOSTICS repaired = ROW_COUNT;
    END IF;
    RETURN repaired;
END
$$;

REVOKE EXECUTE ON FUNCTION user_summaries_repair FROM PUBLIC;
GRANT EXECUTE ON FUNCTION user_summaries_repair TO grantwire_functions;
