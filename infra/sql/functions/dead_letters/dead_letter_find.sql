-- One dead letter of any kind in full, open or closed, as the JSON of the operations API (T1), and the bytes of its
-- message if it is a protocol buffer. No row if there is no such dead letter.
CREATE OR REPLACE FUNCTION dead_letter_find(p_kind text, p_id uuid)
RETURNS TABLE (dead_letter jsonb, payload bytea) LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    WITH found AS (
        SELECT d.kind, d.dead_letter_id, 'OPEN' AS state, d.cause, d.error, d.event_id, d.event_type, d.user_id,
               d.stock_keeping_unit, d.since, d.event_time, NULL::timestamptz AS closed_at, d.has_copy
          FROM dead_letters d WHERE d.kind = p_kind AND d.dead_letter_id = p_id
        UNION ALL
        SELECT c.kind, c.dead_letter_id, c.state, c.cause, c.error, c.event_id, c.event_type, c.user_id,
               c.stock_keeping_unit, c.since, c.event_time, c.closed_at, c.has_copy
          FROM closed_dead_letters c WHERE c.kind = p_kind AND c.dead_letter_id = p_id),
    stored AS (
        SELECT o.attempt_count AS attempts, o.trace_id, o.payload AS decoded, NULL::bytea AS payload, 'json' AS format,
               NULL::jsonb AS headers, NULL::text AS subject, NULL::text AS stream, NULL::bigint AS stream_sequence
          FROM outbox_events o WHERE p_kind = 'outbox' AND o.event_id = p_id
        UNION ALL
        SELECT n.attempt_count, n.trace_id, n.payload, NULL, 'json', NULL, NULL, NULL, NULL
          FROM notification_dlq n WHERE p_kind = 'notification' AND n.notification_id = p_id
        UNION ALL
        SELECT m.deliveries, m.headers->>'trace_id', NULL, m.payload, 'none', m.headers, m.subject, m.stream, m.stream_seq
          FROM notification_nats_dlq m WHERE p_kind = 'nats' AND m.dead_letter_id = p_id)
    SELECT jsonb_build_object(
               'kind', f.kind, 'dead_letter_id', f.dead_letter_id, 'state', f.state, 'cause', f.cause, 'error', f.error,
               'event_id', f.event_id, 'event_type', f.event_type, 'user_id', f.user_id,
               'stock_keeping_unit', f.stock_keeping_unit, 'since', rfc3339(f.since),
               'event_time', rfc3339(f.event_time), 'closed_at', rfc3339(f.closed_at), 'has_copy', f.has_copy,
               'attempts', s.attempts, 'trace_id', s.trace_id,
               'message', jsonb_build_object(
                   'format', s.format, 'decoded', s.decoded, 'headers', s.headers, 'subject', s.subject,
                   'stream', s.stream, 'stream_sequence', s.stream_sequence),
               'actions', (SELECT coalesce(jsonb_agg(a.action - 'dead_letter_ids' ORDER BY a.position), '[]')
                             FROM jsonb_array_elements(operator_actions_find(ARRAY[p_id], 100))
                                  WITH ORDINALITY AS a (action, position))),
           s.payload
      FROM found f, stored s
$$;

REVOKE EXECUTE ON FUNCTION dead_letter_find FROM PUBLIC;
GRANT EXECUTE ON FUNCTION dead_letter_find TO grantwire_functions;
