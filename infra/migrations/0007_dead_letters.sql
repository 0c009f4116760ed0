-- What was given up, and what operators did about it (SPEC D2, Q1-Q4).
--
-- A dead letter carries all that a redrive needs and refers to no table that is swept: it can be sent again after the
-- stream, the inbox and the outbox have forgotten it.

-- Notifications that could not be delivered.
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

-- Messages that JetStream gave up on.
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
    -- Recording an advisory twice leaves one row (Q1). The message's time is part of its identity, because a stream
    -- that was lost and made anew counts from 1 again; NULL means that the message was gone.
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

-- Operators page through the open ones; the sweep walks the closed ones.
CREATE INDEX notification_nats_dlq_open ON notification_nats_dlq (dead_letter_id) WHERE status = 'OPEN';
CREATE INDEX notification_nats_dlq_closed ON notification_nats_dlq (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX notification_nats_dlq_event ON notification_nats_dlq (event_id) WHERE event_id IS NOT NULL;

COMMENT ON COLUMN notification_nats_dlq.payload IS
    'The message as it was; NULL if the stream no longer had it when the advisory was recorded.';
COMMENT ON COLUMN notification_nats_dlq.event_time IS
    'When the event happened, as far as its headers or the stream tell; an old one is redriven only by force (Q2).';
COMMENT ON COLUMN notification_nats_dlq.status IS
    'PROCESSED: JetStream gave up on the message, but a delivery that came late had its effect after all.';
COMMENT ON COLUMN notification_nats_dlq.redrive_count IS
    'The number of its redrive, 0 before; one event may have several dead letters, and each takes the next number.';
COMMENT ON COLUMN notification_nats_dlq.redrive_id IS
    'Nats-Msg-Id of its redrive, committed before the first publish, so that a crash repeats the same id.';
COMMENT ON COLUMN notification_nats_dlq.origin IS
    'The dead letter whose redrive this message was.';

-- Who did what to dead letters, and why (Q2). One row for each batch, committed with what it changed; never swept.
CREATE TABLE operator_actions (
    action_id   uuid        NOT NULL,
    batch       integer     NOT NULL,
    actor       text        NOT NULL,
    reason      text        NOT NULL,
    action      text        NOT NULL,
    kind        text        NOT NULL,
    selection   jsonb       NOT NULL,
    dry_run     boolean     NOT NULL,
    dead_letter_ids  uuid[]      NOT NULL,
    count       integer     NOT NULL,
    occurred_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (action_id, batch),
    CONSTRAINT operator_actions_actor CHECK (actor <> ''),
    CONSTRAINT operator_actions_reason CHECK (reason <> ''),
    CONSTRAINT operator_actions_action CHECK (action IN ('redrive', 'discard')),
    CONSTRAINT operator_actions_kind CHECK (kind IN ('outbox', 'notification', 'nats')),
    CONSTRAINT operator_actions_count CHECK (count = cardinality(dead_letter_ids))
);

CREATE INDEX operator_actions_time ON operator_actions (occurred_at);

COMMENT ON COLUMN operator_actions.dead_letter_ids IS
    'What was changed. Of a dry run: what would have been. Of a redrive to NATS: what was sent; the dead letters say what arrived.';

-- Every dead letter that is open, of all three kinds, as operators search for them. `since` is when it arose, or the
-- closest that is known; `event_time` is there if the inbox has to recognise the event when it is sent again.
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

-- What operators did can be added to, at the database's time, and never be changed.
GRANT SELECT, INSERT, UPDATE, DELETE ON notification_dlq, notification_nats_dlq TO grantwire_functions;
GRANT INSERT (action_id, batch, actor, reason, action, kind, selection, dry_run, dead_letter_ids, count)
   ON operator_actions TO grantwire_functions;
GRANT SELECT ON dead_letters TO grantwire_functions;
