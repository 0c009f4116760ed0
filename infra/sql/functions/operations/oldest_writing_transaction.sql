-- Returns when the oldest running transaction began that writes entitlements or events, or NULL (W3). It finds the
-- transactions that the current role may see: its own, and with the privileges of pg_read_all_stats those of every login.
--
-- VOLATILE, and the snapshot of the activity is cleared: otherwise it would be that of the first read in this transaction.
CREATE OR REPLACE FUNCTION oldest_writing_transaction() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    oldest timestamptz;
BEGIN
    PERFORM pg_stat_clear_snapshot();
    WITH sessions AS MATERIALIZED (
        SELECT a.pid, a.xact_start FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid())
    SELECT min(s.xact_start) INTO oldest
      FROM sessions s JOIN pg_locks l ON l.pid = s.pid
     WHERE l.mode = 'RowExclusiveLock' AND l.granted
       AND l.relation IN ('entitlements'::regclass, 'outbox_events'::regclass);
    RETURN oldest;
END
$$;

REVOKE EXECUTE ON FUNCTION oldest_writing_transaction FROM PUBLIC;
GRANT EXECUTE ON FUNCTION oldest_writing_transaction TO grantwire_functions;
