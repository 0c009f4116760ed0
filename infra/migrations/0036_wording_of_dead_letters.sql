-- The error of a message that JetStream delivered once says "1 delivery". The views are those of migration 0031, with a
-- plural that depends on the number.

CREATE OR REPLACE VIEW dead_letters AS
SELECT kind, dead_letter_id, event_type, user_id, error, since, event_time, has_copy, event_id, stock_keeping_unit,
       left(regexp_replace(regexp_replace(coalesce(nullif(error, ''), 'no error was recorded'),
              '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}', '<id>', 'g'),
              '\d+\.\d+|\d{4,}', '<n>', 'g'), 200) AS cause
  FROM (
    SELECT 'outbox' AS kind, event_id AS dead_letter_id, event_type, payload->>'user_id' AS user_id,
           last_error AS error, failed_at AS since, created_at AS event_time, true AS has_copy, event_id,
           payload->>'stock_keeping_unit' AS stock_keeping_unit
      FROM outbox_events
     WHERE failed_at IS NOT NULL AND status = 'FAILED' AND published_at IS NULL AND discarded_at IS NULL
    UNION ALL
    SELECT 'notification', notification_id, event_type, user_id, last_error, failed_at, NULL, true, event_id,
           stock_keeping_unit
      FROM notification_dlq
     WHERE closed_at IS NULL
    UNION ALL
    SELECT 'nats', dead_letter_id, headers->>'event_type', user_id,
           kind || ' after ' || deliveries || CASE deliveries WHEN 1 THEN ' delivery' ELSE ' deliveries' END
                || coalesce(': ' || reason, ''),
           advised_at, event_time, payload IS NOT NULL, event_id, stock_keeping_unit
      FROM notification_nats_dlq
     WHERE status = 'OPEN') AS open_dead_letters;

CREATE OR REPLACE VIEW closed_dead_letters AS
SELECT kind, dead_letter_id, event_type, user_id, error, since, event_time, has_copy, event_id, stock_keeping_unit,
       left(regexp_replace(regexp_replace(coalesce(nullif(error, ''), 'no error was recorded'),
              '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}', '<id>', 'g'),
              '\d+\.\d+|\d{4,}', '<n>', 'g'), 200) AS cause, state, closed_at
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
    SELECT 'nats', dead_letter_id, headers->>'event_type', user_id,
           kind || ' after ' || deliveries || CASE deliveries WHEN 1 THEN ' delivery' ELSE ' deliveries' END
                || coalesce(': ' || reason, ''),
           advised_at, event_time, payload IS NOT NULL, event_id, stock_keeping_unit, status, closed_at
      FROM notification_nats_dlq
     WHERE closed_at IS NOT NULL) AS closed;
