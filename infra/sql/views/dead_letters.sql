-- The open dead letters of all three kinds, as operators list them (Q2, T1). Those of the outbox are FAILED events, and
-- lost ones that are too old to be published again without a person (W1). `cause` is the error without the parts that
-- differ from one dead letter to the next. `since` is the time when it became a dead letter, or the closest known time.
-- `event_time` is NULL if a redrive does not pass through the inbox.
CREATE OR REPLACE VIEW dead_letters AS
SELECT kind, dead_letter_id, event_type, user_id, error, since, event_time, has_copy, event_id, stock_keeping_unit,
       dead_letter_cause(error) AS cause
  FROM (
    SELECT 'outbox' AS kind, event_id AS dead_letter_id, event_type, payload->>'user_id' AS user_id,
           last_error AS error, failed_at AS since, created_at AS event_time, true AS has_copy, event_id,
           payload->>'stock_keeping_unit' AS stock_keeping_unit
      FROM outbox_events
     WHERE failed_at IS NOT NULL AND status = 'FAILED' AND published_at IS NULL AND discarded_at IS NULL
    UNION ALL
    SELECT 'outbox', o.event_id, o.event_type, o.payload->>'user_id', o.last_error, u.found_at, o.created_at, true,
           o.event_id, o.payload->>'stock_keeping_unit'
      FROM outbox_unconfirmed u
      JOIN outbox_events o ON o.event_id = u.event_id
     WHERE u.state = 'TOO_OLD' AND o.status = 'PUBLISHED'
    UNION ALL
    SELECT 'notification', notification_id, event_type, user_id, last_error, failed_at, NULL, true, event_id,
           stock_keeping_unit
      FROM notification_dlq
     WHERE closed_at IS NULL
    UNION ALL
    SELECT 'nats', dead_letter_id, headers->>'event_type', user_id, nats_dead_letter_error(kind, deliveries, reason),
           advised_at, event_time, payload IS NOT NULL, event_id, stock_keeping_unit
      FROM notification_nats_dlq
     WHERE status = 'OPEN') AS open_dead_letters;

GRANT SELECT ON dead_letters TO grantwire_functions;
