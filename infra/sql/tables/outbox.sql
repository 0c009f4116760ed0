-- The transactional outbox (O1, O8). An event is committed together with the change that caused it, or not at all.
--
-- The version orders the events of an aggregate. Time cannot order them, because a transaction that waited for a row
-- lock has an older now() than the transaction before it.
--
-- An event is open until it is published or discarded. `ready` marks the head, which is the first open event of an
-- aggregate; a claim begins there. A FAILED head is not ready, and its aggregate waits until an operator redrives or
-- discards it. Each function that closes events then calls outbox_promote in a second statement.

CREATE TABLE outbox_events (
    event_id          uuid        PRIMARY KEY,
    event_type        text        NOT NULL,
    aggregate_key     text        COLLATE "C" NOT NULL,
    aggregate_version bigint      NOT NULL,
    payload           jsonb       NOT NULL,
    trace_id          text,
    status            text        NOT NULL DEFAULT 'PENDING',
    -- There is no default, so that an INSERT that bypasses outbox_enqueue fails instead of breaking the order.
    ready             boolean     NOT NULL,
    attempt_count     integer     NOT NULL DEFAULT 0,
    next_retry_at     timestamptz NOT NULL DEFAULT now(),
    locked_by         text,
    locked_at         timestamptz,
    lease_until       timestamptz,
    last_error        text,
    created_at        timestamptz NOT NULL DEFAULT now(),
    published_at      timestamptz,
    discarded_at      timestamptz,
    failed_at         timestamptz,
    stream_sequence   bigint,
    republication     integer,
    CONSTRAINT outbox_events_order UNIQUE (aggregate_key, aggregate_version),
    CONSTRAINT outbox_events_status
        CHECK (status IN ('PENDING', 'IN_FLIGHT', 'PUBLISHED', 'FAILED', 'DISCARDED')),
    CONSTRAINT outbox_events_published CHECK ((status = 'PUBLISHED') = (published_at IS NOT NULL)),
    CONSTRAINT outbox_events_discarded CHECK ((status = 'DISCARDED') = (discarded_at IS NOT NULL)),
    CONSTRAINT outbox_events_leased
        CHECK (status <> 'IN_FLIGHT' OR (locked_by IS NOT NULL AND locked_at IS NOT NULL AND lease_until IS NOT NULL)),
    CONSTRAINT outbox_events_ready CHECK (NOT ready OR status IN ('PENDING', 'IN_FLIGHT')),
    CONSTRAINT outbox_events_attempts CHECK (attempt_count >= 0)
) WITH (
    fillfactor = 50,                        -- room for the HOT update of a claim
    autovacuum_vacuum_scale_factor = 0.02,  -- every row is updated twice and then deleted
    autovacuum_vacuum_insert_scale_factor = 0.02
);

COMMENT ON COLUMN outbox_events.ready IS
    'Whether this event is the head of its aggregate and not FAILED. outbox_enqueue and outbox_promote maintain it.';
COMMENT ON COLUMN outbox_events.failed_at IS
    'When the event became FAILED; NULL if it is not FAILED. A trigger sets it, and a claim stays a HOT update.';
COMMENT ON COLUMN outbox_events.stream_sequence IS
    'The sequence number of the message in the stream; NULL until it is published.';
COMMENT ON COLUMN outbox_events.republication IS
    'How often the event was put back after a loss of the stream; part of its Nats-Msg-Id. NULL: never.';

-- No index contains status or the lease, so that a claim is a HOT update. The indexes on published_at and discarded_at are
-- for retention, the one on failed_at for dead letters.
CREATE INDEX outbox_events_open ON outbox_events (aggregate_key, aggregate_version)
    WHERE published_at IS NULL AND discarded_at IS NULL;
CREATE INDEX outbox_events_ready ON outbox_events (created_at) WHERE ready;
CREATE INDEX outbox_events_published_at ON outbox_events (published_at) WHERE published_at IS NOT NULL;
-- Events that were published more than ten seconds after their change: there are few. For outbox_oldest_unconfirmed.
CREATE INDEX outbox_events_published_late ON outbox_events (published_at)
    WHERE published_at - created_at > interval '10 seconds';
CREATE INDEX outbox_events_discarded_at ON outbox_events (discarded_at) WHERE discarded_at IS NOT NULL;
CREATE INDEX outbox_events_failed ON outbox_events (failed_at, event_id) WHERE failed_at IS NOT NULL;

-- The content of an event cannot be updated.
GRANT SELECT, INSERT, DELETE,
      UPDATE (status, ready, attempt_count, next_retry_at, locked_by, locked_at, lease_until, last_error, published_at,
              discarded_at, stream_sequence, republication)
   ON outbox_events TO grantwire_functions;
