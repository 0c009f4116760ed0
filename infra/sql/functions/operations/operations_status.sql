-- The counts of the status (T1) as one JSON object, in one snapshot. Every count stops at p_cap rows, so that the
-- cost does not depend on the backlog; `capped` is true if more rows than that wait. enable_seqscan is off, because a
-- plan made while a table is empty would read it completely later.
CREATE OR REPLACE FUNCTION operations_status(p_cap integer, p_now timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    now           timestamptz := coalesce(p_now, now());
    outbox        jsonb;
    notifications jsonb;
    dead_letters  jsonb;
    commands      jsonb;
    partitions    jsonb;
BEGIN
    SELECT jsonb_build_object(
             'pending', count(*) FILTER (WHERE o.status = 'PENDING'),
             'in_flight', count(*) FILTER (WHERE o.status = 'IN_FLIGHT'),
             'held', count(*) FILTER (WHERE o.status = 'IN_FLIGHT' AND o.lease_until >= now),
             'expired', count(*) FILTER (WHERE o.status = 'IN_FLIGHT' AND o.lease_until < now),
             'expired_since', rfc3339(min(o.lease_until) FILTER (WHERE o.status = 'IN_FLIGHT' AND o.lease_until < now)),
             'capped', EXISTS (SELECT FROM outbox_events c
                                WHERE c.published_at IS NULL AND c.discarded_at IS NULL OFFSET p_cap),
             'failed', (SELECT count(*) FROM (
                          SELECT FROM outbox_events f WHERE f.failed_at IS NOT NULL LIMIT p_cap) AS failed),
             'parked', (SELECT count(*) FROM (
                SELECT FROM (SELECT f.aggregate_key, f.aggregate_version FROM outbox_events f
                              WHERE f.failed_at IS NOT NULL LIMIT p_cap) AS head
                 CROSS JOIN LATERAL (
                       SELECT FROM outbox_events b
                        WHERE b.aggregate_key = head.aggregate_key AND b.aggregate_version > head.aggregate_version
                          AND b.published_at IS NULL AND b.discarded_at IS NULL AND b.failed_at IS NULL) AS behind
                 LIMIT p_cap) AS parked),
             'oldest_pending_at', (SELECT rfc3339(r.created_at) FROM outbox_events r
                                    WHERE r.ready ORDER BY r.created_at LIMIT 1),
             'oldest_pending_seconds', coalesce((SELECT greatest(0, extract(epoch FROM now - r.created_at))
                                                   FROM outbox_events r
                                                  WHERE r.ready ORDER BY r.created_at LIMIT 1), 0),
             'published_last_minute', (SELECT count(*) FROM (
                SELECT FROM outbox_events p
                 WHERE p.published_at > now - interval '1 minute' AND p.published_at <= now LIMIT p_cap) AS p))
      INTO outbox
      FROM (SELECT e.status, e.lease_until FROM outbox_events e
             WHERE e.published_at IS NULL AND e.discarded_at IS NULL LIMIT p_cap) AS o;

    SELECT jsonb_build_object(
             'pending', count(*) FILTER (WHERE n.status = 'PENDING'),
             'processing', count(*) FILTER (WHERE n.status = 'PROCESSING'),
             'held', count(*) FILTER (WHERE n.lease_until >= now),
             'expired', count(*) FILTER (WHERE n.lease_until < now),
             'expired_since', rfc3339(min(n.lease_until) FILTER (WHERE n.lease_until < now)),
             'capped', EXISTS (SELECT FROM notifications c WHERE c.next_retry_at IS NOT NULL OFFSET p_cap),
             'failed', (SELECT count(*) FROM (
                          SELECT FROM notification_dlq f WHERE f.closed_at IS NULL LIMIT p_cap) AS failed),
             'waiting', coalesce((
                SELECT jsonb_agg(jsonb_build_object(
                           'cause', g.cause, 'count', g.count, 'oldest_at', rfc3339(g.oldest),
                           'next_attempt_at', rfc3339(g.next)) ORDER BY g.count DESC, g.cause)
                  FROM (SELECT dead_letter_cause(w.last_error) AS cause, count(*) AS count, min(w.occurred_at) AS oldest,
                               min(w.next_retry_at) AS next
                          FROM (SELECT u.last_error, u.occurred_at, u.next_retry_at FROM notifications u
                                 WHERE u.next_retry_at IS NOT NULL ORDER BY u.occurred_at LIMIT p_cap) AS w
                         WHERE w.last_error IS NOT NULL
                         GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20) AS g), '[]'),
             'oldest_due_seconds', coalesce(greatest(0, extract(epoch FROM now - min(n.next_retry_at))), 0),
             'processed_last_minute', (SELECT count(*) FROM (
                SELECT FROM processed_events e
                 WHERE e.processed_at > now - interval '1 minute' AND e.processed_at <= now LIMIT p_cap) AS e),
             'sent_last_minute', (SELECT count(*) FROM (
                SELECT FROM (SELECT s.sent_at FROM notifications s
                              WHERE s.created_at > now - interval '1 hour'
                              ORDER BY s.created_at DESC LIMIT p_cap) AS recent
                 WHERE recent.sent_at > now - interval '1 minute' AND recent.sent_at <= now) AS s))
      INTO notifications
      FROM (SELECT d.status, d.lease_until, d.next_retry_at FROM notifications d
             WHERE d.next_retry_at IS NOT NULL ORDER BY d.next_retry_at LIMIT p_cap) AS n;

    dead_letters := dead_letter_groups(p_cap, 20);

    SELECT jsonb_build_object(
             'pending', count(*) FILTER (WHERE c.status = 'PENDING'),
             'running', count(*) FILTER (WHERE c.status = 'RUNNING'),
             'held', count(*) FILTER (WHERE c.lease_until >= now),
             'expired', count(*) FILTER (WHERE c.lease_until < now),
             'expired_since', rfc3339(min(c.lease_until) FILTER (WHERE c.lease_until < now)),
             'failed_last_day', (SELECT count(*) FROM (
                SELECT FROM operator_commands f
                 WHERE f.finished_at > now - interval '1 day' AND f.status = 'FAILED' LIMIT p_cap) AS f),
             'last_failure', (SELECT jsonb_build_object('at', rfc3339(l.finished_at), 'error', l.last_error)
                                FROM operator_commands l
                               WHERE l.finished_at > now - interval '1 day' AND l.status = 'FAILED'
                               ORDER BY l.finished_at DESC LIMIT 1))
      INTO commands
      FROM (SELECT o.status, o.lease_until FROM operator_commands o WHERE o.finished_at IS NULL LIMIT p_cap) AS c;

    -- The months from this one on that have a partition, up to the first that has none.
    WITH months AS (
        SELECT ahead, date_trunc('month', now AT TIME ZONE 'UTC') + make_interval(months => ahead) AS month
          FROM generate_series(0, 24) AS ahead),
    present AS (
        SELECT m.ahead, m.month FROM months m
          JOIN pg_inherits i ON i.inhparent = 'entitlement_audit'::regclass
           AND i.inhrelid = to_regclass(to_char(m.month, '"entitlement_audit_y"YYYY"m"MM'))),
    covered AS (
        SELECT coalesce(min(m.ahead), 25) - 1 AS ahead FROM months m
         WHERE NOT EXISTS (SELECT FROM present p WHERE p.ahead = m.ahead))
    SELECT jsonb_build_object(
             'months_ahead', c.ahead,
             'last_month', (SELECT to_char(p.month, 'YYYY-MM') FROM present p WHERE p.ahead = c.ahead),
             'rows_in_default', (SELECT count(*) FROM (
                SELECT d.occurred_at FROM entitlement_audit_default d LIMIT p_cap) AS d))
      INTO partitions
      FROM covered c;

    RETURN jsonb_build_object(
        'at', rfc3339(now), 'outbox', outbox, 'notifications', notifications, 'dead_letters', dead_letters,
        'commands', commands, 'partitions', partitions,
        'version', schema_version());
END
$$;

REVOKE EXECUTE ON FUNCTION operations_status FROM PUBLIC;
GRANT EXECUTE ON FUNCTION operations_status TO grantwire_functions;
