-- What the tables have about these events, at most 100, as a JSON object with one array for each stage (T2).
--
-- p_requests has one object for each change with a stored response: event_id, caller, route, fingerprint and at. The key
-- itself is not known, so the stored response is searched among the responses that were stored within ten seconds before
-- the change, which the index on their expiry finds. A key belongs to a caller and a route, so both must be the same.
--
-- Of the dead letters of messages, the oldest p_limit are returned. `failed_at` is when an event became a dead letter,
-- FAILED, or lost and too old.
CREATE OR REPLACE FUNCTION trace_stages(p_event_ids uuid[], p_requests jsonb, p_ttl interval, p_limit integer)
RETURNS jsonb LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT jsonb_build_object(
        'outbox', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', o.event_id, 'event_type', o.event_type, 'status', o.status, 'attempts', o.attempt_count,
             'ready', o.ready, 'next_retry_at', rfc3339(o.next_retry_at), 'claimed_by', o.locked_by,
             'claimed_at', rfc3339(o.locked_at), 'lease_until', rfc3339(o.lease_until), 'error', o.last_error,
             'at', rfc3339(o.created_at), 'published_at', rfc3339(o.published_at),
             'stream_sequence', o.stream_sequence,
             'failed_at', rfc3339(coalesce(o.failed_at, (
                 SELECT u.found_at FROM outbox_unconfirmed u
                  WHERE u.event_id = o.event_id AND u.state = 'TOO_OLD' AND o.status = 'PUBLISHED'))),
             'discarded_at', rfc3339(o.discarded_at),
             'version', o.aggregate_version, 'trace_id', o.trace_id)), '[]')
           FROM outbox_events o WHERE o.event_id = ANY (p_event_ids)),
        'inbox', (SELECT coalesce(jsonb_agg(jsonb_build_object('event_id', p.event_id, 'at', rfc3339(p.processed_at))), '[]')
           FROM processed_events p WHERE p.event_id = ANY (p_event_ids)),
        'notifications', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', n.event_id, 'notification_id', n.notification_id, 'status', n.status,
             'attempts', n.attempt_count, 'next_retry_at', rfc3339(n.next_retry_at), 'claimed_by', n.locked_by,
             'lease_until', rfc3339(n.lease_until), 'error', n.last_error, 'at', rfc3339(n.created_at),
             'sent_at', rfc3339(n.sent_at), 'responses', n.responses, 'user_id', n.user_id, 'stock_keeping_unit', n.stock_keeping_unit)), '[]')
           FROM notifications n WHERE n.event_id = ANY (p_event_ids)),
        'dead_notifications', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', d.event_id, 'kind', 'notification', 'dead_letter_id', d.notification_id, 'state', d.status,
             'attempts', d.attempt_count, 'error', d.last_error, 'at', rfc3339(d.failed_at),
             'closed_at', rfc3339(d.closed_at))), '[]')
           FROM notification_dlq d WHERE d.event_id = ANY (p_event_ids)),
        'dead_messages', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', m.event_id, 'kind', 'nats', 'dead_letter_id', m.dead_letter_id, 'state', m.status,
             'advisory', m.kind, 'deliveries', m.deliveries, 'error', m.reason, 'stream', m.stream,
             'stream_sequence', m.stream_seq, 'consumer', m.consumer, 'redrives', m.redrive_count,
             'at', rfc3339(m.advised_at), 'closed_at', rfc3339(m.closed_at))), '[]')
           FROM (SELECT * FROM notification_nats_dlq d WHERE d.event_id = ANY (p_event_ids)
                  ORDER BY d.advised_at LIMIT p_limit) AS m),
        'responses', (SELECT coalesce(jsonb_agg(jsonb_build_object(
             'event_id', r.event_id, 'route', k.route, 'status_code', k.status_code, 'body', k.response_body,
             'at', rfc3339(k.created_at), 'expires_at', rfc3339(k.expires_at))), '[]')
           FROM jsonb_to_recordset(p_requests)
                AS r (event_id uuid, caller text, route text, fingerprint text, at timestamptz)
          CROSS JOIN LATERAL (
                SELECT i.route, i.status_code, i.response_body, i.created_at, i.expires_at FROM idempotency_keys i
                 WHERE i.expires_at > r.at + p_ttl - interval '10 seconds' AND i.expires_at <= r.at + p_ttl
                   AND i.caller = r.caller AND i.route = r.route
                   AND left(encode(sha256(convert_to(i.idempotency_key, 'UTF8')), 'hex'), 12) = r.fingerprint
                 LIMIT 1) AS k))
$$;

REVOKE EXECUTE ON FUNCTION trace_stages FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trace_stages TO grantwire_functions;
