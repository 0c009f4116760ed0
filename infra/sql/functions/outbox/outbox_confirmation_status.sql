-- What the confirmation knows (W1, W4), as one JSON object in one snapshot. Every count stops at p_cap rows, so that the
-- cost does not depend on the backlog. enable_seqscan is off for the reason in outbox_enqueue. The inbox is read in LATERAL
-- with LIMIT or OFFSET: for EXISTS in a list of p_cap rows, the planner would build a hash of the whole inbox.
--
-- `unchecked_since` is the time of the last complete check; if there was none, the time of the oldest published event.
-- `unconfirmed` are published events that are not finished: listed ones, and those behind the mark among the next p_cap
-- events. If `capped`, more events are behind those that were read. The time of the oldest one is in settled_through.
CREATE OR REPLACE FUNCTION outbox_confirmation_status(p_cap integer, p_now timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    now      timestamptz := coalesce(p_now, now());
    listed   jsonb;
    behind   record;
    redrives record;
    result   jsonb;
BEGIN
    SELECT jsonb_build_object(
             'waiting', count(*) FILTER (WHERE u.state = 'WAITING' AND NOT has_arrived),
             'republished', count(*) FILTER (WHERE u.state = 'REPUBLISHED' AND NOT has_arrived),
             'capped', count(*) >= p_cap)
      INTO listed
      FROM (SELECT x.state, x.event_id FROM outbox_unconfirmed x LIMIT p_cap) AS u
     CROSS JOIN LATERAL (
           SELECT EXISTS (SELECT FROM processed_events e WHERE e.event_id = u.event_id) AS has_arrived OFFSET 0) AS a;

    SELECT count(*) AS read, count(*) FILTER (WHERE num_nonnulls(e.found, u.found, d.found) = 0) AS missing
      INTO behind
      FROM (SELECT o.event_id, o.stream_sequence FROM outbox_events o
             WHERE o.published_at > (SELECT c.mark FROM outbox_confirmation c)
             ORDER BY o.published_at LIMIT p_cap) AS n
      LEFT JOIN LATERAL (
           SELECT true AS found FROM processed_events e WHERE e.event_id = n.event_id LIMIT 1) AS e ON true
      LEFT JOIN LATERAL (
           SELECT true AS found FROM outbox_unconfirmed u WHERE u.event_id = n.event_id LIMIT 1) AS u ON true
      LEFT JOIN LATERAL (
           SELECT true AS found FROM notification_nats_dlq d
            WHERE d.event_id = n.event_id AND d.stream_seq = n.stream_sequence LIMIT 1) AS d ON true;

    SELECT count(*) FILTER (WHERE NOT has_arrived) AS count
      INTO redrives
      FROM (SELECT d.event_id FROM notification_nats_dlq d
             WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
             ORDER BY coalesce(d.event_time, d.message_time, d.advised_at) LIMIT p_cap) AS r
     CROSS JOIN LATERAL (
           SELECT EXISTS (SELECT FROM processed_events e WHERE e.event_id = r.event_id) AS has_arrived OFFSET 0) AS a;

    SELECT jsonb_build_object(
             'checked_at', rfc3339(c.completed_at),
             'checked_seconds_ago', greatest(0, extract(epoch FROM now - c.completed_at)),
             'unchecked_since', rfc3339(coalesce(c.completed_at, (
                 SELECT o.published_at FROM outbox_events o
                  WHERE o.published_at IS NOT NULL ORDER BY o.published_at LIMIT 1))),
             'unconfirmed', (listed->>'waiting')::bigint + (listed->>'republished')::bigint + behind.missing,
             'waiting', (listed->>'waiting')::bigint + behind.missing,
             'republished', (listed->>'republished')::bigint,
             'capped', (listed->>'capped')::boolean OR behind.read >= p_cap,
             'redrives', redrives.count,
             'too_old', (SELECT count(*) FROM (
                 SELECT FROM outbox_unconfirmed u WHERE u.state = 'TOO_OLD' LIMIT p_cap) AS t),
             'too_old_since', (SELECT rfc3339(u.found_at) FROM outbox_unconfirmed u WHERE u.state = 'TOO_OLD'
                                ORDER BY u.found_at LIMIT 1),
             'republished_last_hour', (SELECT count(*) FROM (
                 SELECT FROM outbox_republications r
                  WHERE r.put_back_at > now - interval '1 hour' LIMIT p_cap) AS r),
             'last_republished_at', (SELECT rfc3339(r.put_back_at) FROM outbox_republications r
                                      ORDER BY r.put_back_at DESC LIMIT 1),
             'losses', coalesce((
                 SELECT jsonb_agg(jsonb_build_object(
                            'loss_id', l.loss_id, 'cause', l.cause, 'first_sequence', l.first_sequence,
                            'last_sequence', l.last_sequence, 'detected_at', rfc3339(l.detected_at),
                            'completed_at', rfc3339(l.completed_at), 'events_lost', l.events_lost,
                            'events_republished', l.events_republished) ORDER BY l.loss_id DESC)
                   FROM (SELECT * FROM stream_losses s
                          WHERE s.detected_at > now - interval '1 day' AND s.cause <> 'DELETED'
                          ORDER BY s.detected_at DESC LIMIT 20) AS l), '[]'))
      INTO result FROM outbox_confirmation c;
    RETURN result;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_confirmation_status FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_confirmation_status TO grantwire_functions;
