-- Marks first open events ready that are neither ready nor FAILED. Returns how many were marked. Such an event is the
-- result of a bug and should be reported, but its aggregate must not stay blocked.
CREATE OR REPLACE FUNCTION outbox_promote_stuck() RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN outbox_promote(ARRAY(
        SELECT first.aggregate_key
          FROM (SELECT DISTINCT ON (o.aggregate_key) o.aggregate_key, o.ready, o.status
                  FROM outbox_events o
                 WHERE o.published_at IS NULL AND o.discarded_at IS NULL
                 ORDER BY o.aggregate_key, o.aggregate_version) AS first
         WHERE NOT first.ready AND first.status <> 'FAILED'));
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_promote_stuck FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_promote_stuck TO grantwire_functions;
