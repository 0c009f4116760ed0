-- The inbox and the notifications (N4, D1). An event is recorded in processed_events and becomes a notification in one
-- transaction, so a redelivery of it changes nothing. The check on event_type calls a SQL function, so infra/sql/triggers.sql
-- adds it.

CREATE TABLE processed_events (
    event_id     uuid        PRIMARY KEY,
    processed_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX processed_events_time ON processed_events (processed_at);

CREATE TABLE notifications (
    notification_id    uuid        PRIMARY KEY,
    event_id           uuid        NOT NULL,
    event_type         text        NOT NULL,
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    version            bigint      NOT NULL,
    -- The time of the change, as the event reports it.
    occurred_at        timestamptz NOT NULL DEFAULT now(),
    payload            jsonb       NOT NULL,
    trace_id           text,
    status             text        NOT NULL DEFAULT 'PENDING',
    attempt_count      integer     NOT NULL DEFAULT 0,
    -- When the next attempt is due; NULL when the notification is SENT or FAILED.
    next_retry_at      timestamptz DEFAULT now(),
    locked_by          text,
    locked_at          timestamptz,
    lease_until        timestamptz,
    last_error         text,
    responses          jsonb,
    created_at         timestamptz NOT NULL DEFAULT now(),
    sent_at            timestamptz,
    CONSTRAINT notifications_event UNIQUE (event_id),
    CONSTRAINT notifications_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT notifications_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128),
    CONSTRAINT notifications_version CHECK (version >= 1),
    CONSTRAINT notifications_payload CHECK (jsonb_typeof(payload) = 'object'),
    CONSTRAINT notifications_status CHECK (status IN ('PENDING', 'PROCESSING', 'SENT', 'FAILED')),
    CONSTRAINT notifications_open CHECK ((status IN ('PENDING', 'PROCESSING')) = (next_retry_at IS NOT NULL)),
    CONSTRAINT notifications_sent CHECK ((status = 'SENT') = (sent_at IS NOT NULL)),
    CONSTRAINT notifications_leased
        CHECK ((status = 'PROCESSING') = (locked_by IS NOT NULL AND locked_at IS NOT NULL AND lease_until IS NOT NULL)),
    CONSTRAINT notifications_attempts CHECK (attempt_count >= 0)
) WITH (
    fillfactor = 45,                        -- room for the HOT update of a claim, which makes the row longer
    autovacuum_vacuum_scale_factor = 0.02,  -- every row is updated twice and then deleted
    autovacuum_vacuum_insert_scale_factor = 0.02
);

COMMENT ON COLUMN notifications.responses IS
    'The last 20 attempts to send it: an array of objects with at, the time, and response; NULL if there was none.';

-- Ordered by due time, which for new notifications is the order of creation. Notifications that wait for a retry come
-- after the due ones, so a claim does not read them. The index contains neither status nor lease, so that a claim is a
-- HOT update.
CREATE INDEX notifications_due ON notifications (next_retry_at) WHERE next_retry_at IS NOT NULL;
-- The oldest change that is not SENT (W3): settled_through.
CREATE INDEX notifications_unsent ON notifications (occurred_at) WHERE next_retry_at IS NOT NULL;
-- Rows of one batch have the same created_at. Event ids increase with time, so they complete the order.
CREATE INDEX notifications_inbox ON notifications (user_id, created_at DESC, version DESC, event_id DESC);
-- For retention.
CREATE INDEX notifications_created_at ON notifications (created_at);

-- The sweep locks rows before it deletes them, which requires the UPDATE privilege on at least one column.
GRANT SELECT, INSERT, DELETE, UPDATE (processed_at) ON processed_events TO grantwire_functions;
GRANT SELECT, INSERT, UPDATE, DELETE ON notifications TO grantwire_functions;
