-- Dead letters and the actions of operators (SPEC D2, Q1-Q4).
--
-- A dead letter contains everything that a redrive needs, and refers to no other table. It can be redriven after its
-- event has been deleted from the stream, the inbox and the outbox.

-- Notifications that are FAILED.
CREATE TABLE notification_dlq (
    notification_id    uuid        PRIMARY KEY,
    event_id           uuid        NOT NULL,
    event_type         text        NOT NULL,
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    version            bigint      NOT NULL,
    payload            jsonb       NOT NULL,
    trace_id           text,
    attempt_count      integer     NOT NULL,
    last_error         text,
    failed_at          timestamptz NOT NULL DEFAULT now(),
    status             text        NOT NULL DEFAULT 'OPEN',
    closed_at          timestamptz,
    CONSTRAINT notification_dlq_status CHECK (status IN ('OPEN', 'REDRIVEN', 'DISCARDED')),
    CONSTRAINT notification_dlq_closed CHECK ((status = 'OPEN') = (closed_at IS NULL))
);

CREATE INDEX notification_dlq_open ON notification_dlq (failed_at, notification_id) WHERE closed_at IS NULL;
CREATE INDEX notification_dlq_closed_at ON notification_dlq (closed_at) WHERE closed_at IS NOT NULL;

-- Messages that JetStream no longer delivers.
CREATE TABLE notification_nats_dlq (
    dead_letter_id uuid        PRIMARY KEY,
    stream         text        COLLATE "C" NOT NULL,
    consumer       text        COLLATE "C" NOT NULL,
    stream_seq     bigint      NOT NULL,
    kind           text        NOT NULL,
    deliveries     integer     NOT NULL,
    reason         text,
    subject        text,
    headers        jsonb,
    payload        bytea,
    event_id       uuid,
    event_time     timestamptz,
    message_time   timestamptz,
    advised_at     timestamptz NOT NULL,
    recorded_at    timestamptz NOT NULL DEFAULT now(),
    status         text        NOT NULL DEFAULT 'OPEN',
    redrive_count  integer     NOT NULL DEFAULT 0,
    redrive_id     text        COLLATE "C",
    closed_at      timestamptz,
    origin         uuid,
    -- Recording an advisory twice leaves one row (Q1). The time of the message is part of its identity, because the
    -- sequence of a stream that was created again starts at 1. NULL means that the stream no longer had the message.
    CONSTRAINT notification_nats_dlq_message
        UNIQUE NULLS NOT DISTINCT (stream, stream_seq, consumer, kind, message_time),
    CONSTRAINT notification_nats_dlq_kind CHECK (kind IN ('MAX_DELIVERIES', 'MSG_TERMINATED')),
    CONSTRAINT notification_nats_dlq_status CHECK (status IN ('OPEN', 'REDRIVEN', 'DISCARDED', 'PROCESSED')),
    CONSTRAINT notification_nats_dlq_closed CHECK ((status = 'OPEN') = (closed_at IS NULL)),
    CONSTRAINT notification_nats_dlq_copy
        CHECK ((payload IS NULL) = (subject IS NULL) AND (payload IS NULL) = (message_time IS NULL)),
    CONSTRAINT notification_nats_dlq_redriven CHECK (status <> 'REDRIVEN' OR redrive_id IS NOT NULL),
    CONSTRAINT notification_nats_dlq_redrives CHECK (redrive_count >= 0)
);

-- Operators list open dead letters; the sweep deletes closed ones.
CREATE INDEX notification_nats_dlq_open ON notification_nats_dlq (dead_letter_id) WHERE status = 'OPEN';
CREATE INDEX notification_nats_dlq_closed ON notification_nats_dlq (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX notification_nats_dlq_event ON notification_nats_dlq (event_id) WHERE event_id IS NOT NULL;

COMMENT ON COLUMN notification_nats_dlq.payload IS
    'Content of the message; NULL if the stream no longer had it when the advisory was recorded.';
COMMENT ON COLUMN notification_nats_dlq.event_time IS
    'When the event occurred, according to its headers or the stream. An old event is redriven only with force (Q2).';
COMMENT ON COLUMN notification_nats_dlq.status IS
    'PROCESSED: JetStream stopped delivering the message, but a late delivery was recorded in the inbox.';
COMMENT ON COLUMN notification_nats_dlq.redrive_count IS
    'Number of the redrive; 0 before. If an event has several dead letters, each redrive has the next number.';
COMMENT ON COLUMN notification_nats_dlq.redrive_id IS
    'Nats-Msg-Id of the redrive, committed before the first publish so that a retry after a crash uses the same id.';
COMMENT ON COLUMN notification_nats_dlq.origin IS
    'The dead letter whose redrive published this message.';

-- The actions of operators on dead letters, with actor and reason (Q2). Each batch has one row, which is committed
-- together with its changes. The sweep never deletes these rows.
CREATE TABLE operator_actions (
    action_id       uuid        NOT NULL,
    batch           integer     NOT NULL,
    actor           text        NOT NULL,
    reason          text        NOT NULL,
    action          text        NOT NULL,
    kind            text        NOT NULL,
    selection       jsonb       NOT NULL,
    dry_run         boolean     NOT NULL,
    dead_letter_ids uuid[]      NOT NULL,
    count           integer     NOT NULL,
    occurred_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (action_id, batch),
    CONSTRAINT operator_actions_actor CHECK (actor <> ''),
    CONSTRAINT operator_actions_reason CHECK (reason <> ''),
    CONSTRAINT operator_actions_action CHECK (action IN ('redrive', 'discard')),
    CONSTRAINT operator_actions_kind CHECK (kind IN ('outbox', 'notification', 'nats')),
    CONSTRAINT operator_actions_count CHECK (count = cardinality(dead_letter_ids))
);

CREATE INDEX operator_actions_time ON operator_actions (occurred_at);

COMMENT ON COLUMN operator_actions.dead_letter_ids IS
    'The changed dead letters; for a dry run, those that would have changed; for a redrive to NATS, those published.';

-- The open dead letters of all three kinds, as operators list them. `since` is the time when it became a dead letter,
-- or the closest known time. `event_time` is NULL if a redrive does not pass through the inbox.
CREATE VIEW dead_letters AS
SELECT 'outbox' AS kind, event_id AS dead_letter_id, event_type, payload->>'user_id' AS user_id, last_error AS error,
       created_at AS since, created_at AS event_time, true AS has_copy
  FROM outbox_events
 WHERE status = 'FAILED' AND published_at IS NULL AND discarded_at IS NULL
UNION ALL
SELECT 'notification', notification_id, event_type, user_id, last_error, failed_at, NULL, true
  FROM notification_dlq
 WHERE closed_at IS NULL
UNION ALL
SELECT 'nats', dead_letter_id, headers->>'event_type', NULL,
       kind || ' after ' || deliveries || ' deliveries' || coalesce(': ' || reason, ''),
       advised_at, event_time, payload IS NOT NULL
  FROM notification_nats_dlq
 WHERE status = 'OPEN';

-- Operator actions can be added but not changed or deleted, and occurred_at is always the time of the database.
GRANT SELECT, INSERT, UPDATE, DELETE ON notification_dlq, notification_nats_dlq TO grantwire_functions;
GRANT INSERT (action_id, batch, actor, reason, action, kind, selection, dry_run, dead_letter_ids, count)
   ON operator_actions TO grantwire_functions;
GRANT SELECT ON dead_letters TO grantwire_functions;
