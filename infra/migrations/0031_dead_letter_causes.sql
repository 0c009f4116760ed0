-- Dead letters for the operations API (SPEC T1): user and stock keeping unit of messages, an index for FAILED events, the
-- cause of each dead letter, and a view of the closed ones.

ALTER TABLE notification_nats_dlq
    ADD COLUMN user_id            text COLLATE "C",
    ADD COLUMN stock_keeping_unit text COLLATE "C",
    ADD CONSTRAINT notification_nats_dlq_user_id_length CHECK (char_length(user_id) <= 128),
    ADD CONSTRAINT notification_nats_dlq_sku_length CHECK (char_length(stock_keeping_unit) <= 128);

COMMENT ON COLUMN notification_nats_dlq.user_id IS 'The user that the message names; NULL if it is not an event.';

CREATE INDEX notification_nats_dlq_advised ON notification_nats_dlq (advised_at, dead_letter_id) WHERE status = 'OPEN';

-- When the event became FAILED; NULL if it is not FAILED. A trigger sets it (infra/sql/after_functions.sql), so that also
-- functions of the previous release do. A claim does not change it, and stays a HOT update.
ALTER TABLE outbox_events ADD COLUMN failed_at timestamptz;
CREATE INDEX outbox_events_failed ON outbox_events (failed_at, event_id) WHERE failed_at IS NOT NULL;

-- The cause is the error without the parts that differ from one dead letter to the next: UUIDs, long numbers, fractions.
-- Short numbers stay, because they are statuses. `since` is the time when it became a dead letter, or the closest known
-- time. `event_time` is NULL if a redrive does not pass through the inbox.
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
           kind || ' after ' || deliveries || ' deliveries' || coalesce(': ' || reason, ''),
           advised_at, event_time, payload IS NOT NULL, event_id, stock_keeping_unit
      FROM notification_nats_dlq
     WHERE status = 'OPEN') AS open_dead_letters;

-- The dead letters that were closed and that the sweep has not deleted. An outbox event that was redriven is an ordinary
-- event again, and has no row here.
CREATE VIEW closed_dead_letters AS
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
           kind || ' after ' || deliveries || ' deliveries' || coalesce(': ' || reason, ''),
           advised_at, event_time, payload IS NOT NULL, event_id, stock_keeping_unit, status, closed_at
      FROM notification_nats_dlq
     WHERE closed_at IS NOT NULL) AS closed;

GRANT SELECT ON closed_dead_letters TO grantwire_functions;

-- The actions on a dead letter.
CREATE INDEX operator_actions_dead_letters ON operator_actions USING gin (dead_letter_ids)
    WHERE dead_letter_ids IS NOT NULL;
