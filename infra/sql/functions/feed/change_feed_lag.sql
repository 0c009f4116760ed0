-- Returns for how many seconds a committed change has been held back from the change feed; 0 if none is (K9). A
-- change is held back while a transaction with a lower id is running, in any database of the cluster.
--
-- It reads at most 1,000 of the changes that are held back, those with the lowest transaction ids, which are the oldest
-- or close to it. A transaction id above the last one that was assigned is not of this cluster: it came with a dump. The
-- function runs with the privileges of the schema owner and has the planner settings of change_feed_page, for the same
-- reasons.
CREATE OR REPLACE FUNCTION change_feed_lag() RETURNS double precision
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(held.occurred_at)), 0))
          FROM (SELECT a.occurred_at
                  FROM entitlement_audit a
                 WHERE a.outcome = 'APPLIED'
                   AND a.transaction_id >= pg_snapshot_xmin(pg_current_snapshot())
                   AND a.transaction_id < pg_snapshot_xmax(pg_current_snapshot())
                 ORDER BY a.transaction_id, a.occurred_at, a.operation_id
                 LIMIT 1000) AS held);
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION change_feed_lag SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION change_feed_lag FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_feed_lag TO grantwire_functions;
