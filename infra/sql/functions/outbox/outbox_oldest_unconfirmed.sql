-- Returns the time of the oldest change whose event is published and not finished, or NULL (W1, W3): the inbox does not
-- have it, and no dead letter of its message exists but a redriven one. A lost event that is TOO_OLD is a dead letter.
--
-- The confirmation lists such events, and its mark has not passed the others. Of those p_cap are read, in the order in which
-- they were published. An event behind them was published later, and at most ten seconds after its change, unless it is
-- in the index of events that were published late. Those are read, too. If even they are more than p_cap, the result
-- does not pass that of the last sample.
--
-- The inbox is searched in the order of the changes and only up to the first that is missing, which ends the search early
-- while there is a backlog. Every statement sees the snapshot of the caller. LATERAL with OFFSET and enable_seqscan are
-- for the reasons in outbox_oldest_unpublished.
CREATE OR REPLACE FUNCTION outbox_oldest_unconfirmed(p_cap integer)
RETURNS timestamptz LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    listed   timestamptz;
    redriven timestamptz;
    near     record;
    late     record;
BEGIN
    SELECT coalesce(
             (SELECT u.changed_at
                FROM (SELECT x.event_id, x.changed_at FROM outbox_unconfirmed x
                       WHERE x.state <> 'TOO_OLD' ORDER BY x.changed_at LIMIT p_cap) AS u
               CROSS JOIN LATERAL (
                     SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = u.event_id)
                            OR EXISTS (SELECT FROM notification_nats_dlq d
                                         JOIN outbox_events o ON o.event_id = d.event_id
                                        WHERE d.event_id = u.event_id AND d.stream_seq = o.stream_sequence) AS finished
                     OFFSET 0) AS f
               WHERE NOT finished ORDER BY u.changed_at LIMIT 1),
             (SELECT x.changed_at FROM outbox_unconfirmed x
               WHERE x.state <> 'TOO_OLD' ORDER BY x.changed_at OFFSET p_cap LIMIT 1))
      INTO listed;

    SELECT coalesce(
             (SELECT r.changed_at
                FROM (SELECT d.event_id, coalesce(d.event_time, d.message_time, d.advised_at) AS changed_at
                        FROM notification_nats_dlq d
                       WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
                       ORDER BY coalesce(d.event_time, d.message_time, d.advised_at) LIMIT p_cap) AS r
               CROSS JOIN LATERAL (
                     SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = r.event_id) AS finished
                     OFFSET 0) AS f
               WHERE NOT finished ORDER BY r.changed_at LIMIT 1),
             (SELECT coalesce(d.event_time, d.message_time, d.advised_at) FROM notification_nats_dlq d
               WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
               ORDER BY coalesce(d.event_time, d.message_time, d.advised_at) OFFSET p_cap LIMIT 1))
      INTO redriven;

    WITH behind AS MATERIALIZED (
        SELECT o.event_id, o.published_at, o.created_at, o.stream_sequence FROM outbox_events o
         WHERE o.published_at > (SELECT c.mark FROM outbox_confirmation c)
         ORDER BY o.published_at LIMIT p_cap)
    SELECT (SELECT count(*) FROM behind) AS count, (SELECT max(b.published_at) FROM behind b) AS until,
           (SELECT n.created_at
              FROM (SELECT b.event_id, b.created_at, b.stream_sequence FROM behind b ORDER BY b.created_at) AS n
             CROSS JOIN LATERAL (
                   SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = n.event_id)
                          OR EXISTS (SELECT FROM notification_nats_dlq d
                                      WHERE d.event_id = n.event_id AND d.stream_seq = n.stream_sequence) AS finished
                   OFFSET 0) AS f
             WHERE NOT finished ORDER BY n.created_at LIMIT 1) AS oldest
      INTO near;
    IF near.count < p_cap THEN
        RETURN least(listed, redriven, near.oldest);
    END IF;

    WITH published_late AS MATERIALIZED (
        SELECT o.event_id, o.created_at, o.stream_sequence FROM outbox_events o
         WHERE o.published_at >= near.until AND o.published_at - o.created_at > interval '10 seconds'
         ORDER BY o.published_at LIMIT p_cap)
    SELECT (SELECT count(*) FROM published_late) AS count,
           (SELECT n.created_at
              FROM (SELECT l.event_id, l.created_at, l.stream_sequence FROM published_late l ORDER BY l.created_at) AS n
             CROSS JOIN LATERAL (
                   SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = n.event_id)
                          OR EXISTS (SELECT FROM notification_nats_dlq d
                                      WHERE d.event_id = n.event_id AND d.stream_seq = n.stream_sequence) AS finished
                   OFFSET 0) AS f
             WHERE NOT finished ORDER BY n.created_at LIMIT 1) AS oldest
      INTO late;
    RETURN least(
        listed, redriven, near.oldest, near.until - interval '10 seconds', late.oldest,
        CASE WHEN late.count >= p_cap THEN coalesce(
            (SELECT s.settled_through FROM status_samples s ORDER BY s.sampled_at DESC LIMIT 1), to_timestamp(0)) END);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_oldest_unconfirmed FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_oldest_unconfirmed TO grantwire_functions;
