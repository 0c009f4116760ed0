-- The dead letters that were closed and that the sweep has not deleted (T1). An outbox event that was redriven is an ordinary
-- event again, and has no row here.
CREATE OR REPLACE VIEW closed_dead_letters AS
SELECT kind, dead_letter_id, event_type, user_id, error, since, event_time, has_copy, event_id, stock_keeping_unit,
       dead_letter_cause(error) AS cause, state, closed_at
  FROM (
    SELECT 'outbox' AS kind, event_id AS dead_letter_id, event_type, payload->>'user_id' AS user_id,
           last_error AS error, created_at AS since, created_at AS event_time, true AS has_copy, event_id,
           payload->>'stock_keeping_unit' AS stock_keeping_unit, status AS state, discarded_at AS closed_at
      FROM outbox_events
     WHERE discarded_at IS NOT NULL
    UNION ALL
    SELECT 'notification', notification_id, event_type, user_id, last_error, failed_at, NULL, true, event_id,
           stock_keeping_unit, status, closed_at
      FROM notification_dlq
     WHERE closed_at IS NOT NULL
    UNION ALL
    SELECT 'nats', dead_letter_id, headers->>'event_type', user_id, nats_dead_letter_error(kind, deliveries, reason),
           advised_at, event_time, payload IS NOT NULL, event_id, stock_keeping_unit, status, closed_at
      FROM notification_nats_dlq
     WHERE closed_at IS NOT NULL) AS closed;

GRANT SELECT ON closed_dead_letters TO grantwire_functions;
