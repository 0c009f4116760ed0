-- Dead letters (D2, Q1 to Q4). A dead letter contains everything that a redrive needs, and refers to no other table. It can
-- be redriven after its event has been deleted from the stream, the inbox and the outbox. Outbox events that are FAILED, or
-- lost and too old, are the third kind; the view dead_letters lists all three.

-- Notifications that are FAILED.
CREATE TABLE notification_dlq (
    notification_id    uuid        PRIMARY KEY,
    event_id           uuid        NOT NULL,
    event_type         text        NOT NULL,
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    version            bigint      NOT NULL,
    occurred_at        timestamptz NOT NULL DEFAULT now(),
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
-- A trace by notification or event id.
CREATE INDEX notification_dlq_event ON notification_dlq (event_id);

-- Messages that JetStream no longer delivers.
CREATE TABLE notification_nats_dlq (
    dead_letter_id     uuid        PRIMARY KEY,
    stream             text        COLLATE "C" NOT NULL,
    consumer           text        COLLATE "C" NOT NULL,
    stream_seq         bigint      NOT NULL,
    kind               text        NOT NULL,
    deliveries         integer     NOT NULL,
    reason             text,
    subject            text,
    headers            jsonb,
    payload            bytea,
    event_id           uuid,
    user_id            text        COLLATE "C",
    stock_keeping_unit text        COLLATE "C",
    event_time         timestamptz,
    message_time       timestamptz,
    advised_at         timestamptz NOT NULL,
    recorded_at        timestamptz NOT NULL DEFAULT now(),
    status             text        NOT NULL DEFAULT 'OPEN',
    redrive_count      integer     NOT NULL DEFAULT 0,
    redrive_id         text        COLLATE "C",
    forced             boolean     NOT NULL DEFAULT false,
    closed_at          timestamptz,
    origin             uuid,
    redriven_at        timestamptz,
    redriven_sequence  bigint,
    redrive_confirmed  boolean     NOT NULL DEFAULT false,
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
    CONSTRAINT notification_nats_dlq_redrives CHECK (redrive_count >= 0),
    CONSTRAINT notification_nats_dlq_user_id_length CHECK (char_length(user_id) <= 128),
    CONSTRAINT notification_nats_dlq_sku_length CHECK (char_length(stock_keeping_unit) <= 128)
);

-- Operators list open dead letters; the sweep deletes closed ones.
CREATE INDEX notification_nats_dlq_open ON notification_nats_dlq (dead_letter_id) WHERE status = 'OPEN';
CREATE INDEX notification_nats_dlq_advised ON notification_nats_dlq (advised_at, dead_letter_id) WHERE status = 'OPEN';
CREATE INDEX notification_nats_dlq_closed ON notification_nats_dlq (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX notification_nats_dlq_event ON notification_nats_dlq (event_id, stream_seq) WHERE event_id IS NOT NULL;
-- The confirmation reads redriven ones whose events have not arrived.
CREATE INDEX notification_nats_dlq_unconfirmed ON notification_nats_dlq (redriven_at)
    WHERE status = 'REDRIVEN' AND NOT redrive_confirmed AND event_id IS NOT NULL;
-- The oldest of their changes (W3): outbox_oldest_unconfirmed.
CREATE INDEX notification_nats_dlq_unconfirmed_change
    ON notification_nats_dlq (coalesce(event_time, message_time, advised_at))
    WHERE status = 'REDRIVEN' AND NOT redrive_confirmed AND event_id IS NOT NULL;

COMMENT ON COLUMN notification_nats_dlq.payload IS
    'Content of the message; NULL if the stream no longer had it when the advisory was recorded.';
COMMENT ON COLUMN notification_nats_dlq.user_id IS 'The user that the message names; NULL if it is not an event.';
COMMENT ON COLUMN notification_nats_dlq.event_time IS
    'When the event occurred, according to its headers or the stream. An old event is redriven only with force (Q2).';
COMMENT ON COLUMN notification_nats_dlq.status IS
    'PROCESSED: JetStream stopped delivering the message, but a late delivery was recorded in the inbox.';
COMMENT ON COLUMN notification_nats_dlq.redrive_count IS
    'Number of the redrive; 0 before. If an event has several dead letters, each redrive has the next number.';
COMMENT ON COLUMN notification_nats_dlq.redrive_id IS
    'Nats-Msg-Id of the redrive, committed before the first publish so that a retry after a crash uses the same id.';
COMMENT ON COLUMN notification_nats_dlq.forced IS
    'Whether an operator has redriven this message with force although the audit no longer has its event (G1). Committed together with the number of the redrive.';
COMMENT ON COLUMN notification_nats_dlq.origin IS
    'The dead letter whose redrive published this message.';
COMMENT ON COLUMN notification_nats_dlq.redriven_sequence IS
    'The sequence number of the redriven message in the stream; NULL until JetStream has stored it.';
COMMENT ON COLUMN notification_nats_dlq.redrive_confirmed IS
    'Whether the inbox has the event of a redriven dead letter, or another dead letter of it took its place (W1).';

GRANT SELECT, INSERT, UPDATE, DELETE ON notification_dlq, notification_nats_dlq TO grantwire_functions;
