-- Makes published events PENDING again that the stream has lost, so that they are published under the next
-- republication number, which is committed before (W1). An event is put back only if it is still PUBLISHED with its
-- sequence, and if no open, discarded or redriven dead letter has the message with that sequence. A dead letter with the
-- same event id and another sequence does not count: anyone who can publish can send such a message (G1). p_arrived
-- puts back also events that the inbox has, for outside readers. p_cause and p_loss_id are kept in
-- outbox_republications.
--
-- An event of before p_oldest is not put back, because the inbox may have forgotten it. If it is unfinished, it is
-- listed as TOO_OLD, and is a dead letter for a person. Returns how many events were put back and how many are newly
-- TOO_OLD.
--
-- With the next_retry_at of a new event, an event is due whatever the clock says (W6). One that is lost again waits
-- p_backoff, doubled each time, up to ten minutes.
--
-- The lowest open event of each aggregate becomes the only ready one. So the entitlements are locked first: a change that
-- is not committed may have enqueued an event that is ready, too. Then all events are locked, in the order of aggregate and
-- version, as in every function that closes events (W7, ADR 0041). If they are not free after p_lock_wait_ms, nothing is
-- changed, and the result is NULL. If p_lock_wait_ms is NULL, the settings of the session limit the wait. enable_seqscan is
-- off for the reason in outbox_enqueue.
CREATE OR REPLACE FUNCTION outbox_put_back(
    p_event_ids uuid[], p_sequences bigint[], p_cause text, p_loss_id bigint, p_arrived boolean, p_oldest timestamptz,
    p_backoff interval, p_lock_wait_ms integer, p_now timestamptz, OUT put_back integer, OUT too_old integer)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    now      timestamptz := coalesce(p_now, now());
    deadline timestamptz := clock_timestamp() + p_lock_wait_ms * interval '1 millisecond';
    user_ids text[];
    skus     text[];
    keys     text[];
    locked   uuid[];
BEGIN
    SELECT array_agg(o.payload->>'user_id'), array_agg(o.payload->>'stock_keeping_unit'),
           array_agg(DISTINCT o.aggregate_key)
      INTO user_ids, skus, keys
      FROM outbox_events o WHERE o.event_id = ANY (p_event_ids);
    BEGIN
        PERFORM entitlements_lock(user_ids, skus, deadline, p_lock_wait_ms);
        locked := ARRAY(
            SELECT o.event_id FROM outbox_events o
             WHERE o.event_id = ANY (p_event_ids || ARRAY(
                     SELECT x.event_id FROM outbox_events x
                      WHERE x.aggregate_key = ANY (keys) AND x.published_at IS NULL AND x.discarded_at IS NULL))
             ORDER BY o.aggregate_key, o.aggregate_version
               FOR UPDATE);
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;

    WITH lost AS MATERIALIZED (
        SELECT o.event_id, o.created_at, o.stream_sequence, coalesce(o.republication, 0) + 1 AS number, i.arrived
          FROM unnest(p_event_ids, p_sequences) AS a (event_id, stream_sequence)
          JOIN outbox_events o ON o.event_id = a.event_id
         CROSS JOIN LATERAL (
               SELECT EXISTS (SELECT FROM processed_events p WHERE p.event_id = o.event_id) AS arrived) AS i
         WHERE o.status = 'PUBLISHED' AND o.stream_sequence IS NOT DISTINCT FROM a.stream_sequence
           AND (p_arrived OR NOT i.arrived)
           AND NOT EXISTS (SELECT FROM notification_nats_dlq d
                            WHERE d.event_id = o.event_id AND d.stream_seq = o.stream_sequence
                              AND d.status <> 'PROCESSED')),
    reopened AS (
        UPDATE outbox_events o
           SET status = 'PENDING', ready = false, published_at = NULL, stream_sequence = NULL, attempt_count = 0,
               republication = l.number, last_error = NULL,
               next_retry_at = CASE WHEN l.number = 1 OR p_backoff = interval '0' THEN l.created_at ELSE
                   now + least(interval '10 minutes', p_backoff * 2 ^ least(l.number - 2, 20)) END
          FROM lost l
         WHERE o.event_id = l.event_id AND l.created_at >= p_oldest
        RETURNING l.*),
    refused AS (
        UPDATE outbox_events o
           SET last_error = 'lost by the stream, and the inbox may have forgotten whether it arrived'
          FROM lost l
         WHERE o.event_id = l.event_id AND l.created_at < p_oldest AND NOT l.arrived),
    logged AS (
        INSERT INTO outbox_republications (event_id, number, cause, loss_id, stream_sequence, put_back_at)
        SELECT r.event_id, r.number, p_cause, p_loss_id, r.stream_sequence, now FROM reopened r),
    listed AS (
        INSERT INTO outbox_unconfirmed AS u (event_id, state, changed_at, stream_sequence, found_at)
        SELECT l.event_id, CASE WHEN l.created_at >= p_oldest THEN 'REPUBLISHED' ELSE 'TOO_OLD' END, l.created_at,
               l.stream_sequence, now
          FROM lost l WHERE NOT l.arrived
            ON CONFLICT (event_id) DO UPDATE
           SET state = EXCLUDED.state, stream_sequence = EXCLUDED.stream_sequence, passed_at = NULL
         WHERE u.state <> EXCLUDED.state
        RETURNING u.state)
    SELECT (SELECT count(*) FROM reopened), (SELECT count(*) FROM listed l WHERE l.state = 'TOO_OLD')
      INTO put_back, too_old;

    UPDATE outbox_events o
       SET ready = false
     WHERE o.event_id = ANY (locked) AND o.ready
       AND EXISTS (SELECT FROM outbox_events e
                    WHERE e.aggregate_key = o.aggregate_key AND e.aggregate_version < o.aggregate_version
                      AND e.published_at IS NULL AND e.discarded_at IS NULL);
    PERFORM outbox_promote(keys);
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_put_back FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_put_back TO grantwire_functions;
