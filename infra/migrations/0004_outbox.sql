-- The transactional outbox (SPEC O1, O8): an event is committed with the change that caused it, or not at all.
--
-- Order is kept for each aggregate by version, never by time: a transaction that waited for a row lock has an older
-- now() than the one before it. An event is open until it is published or discarded. `ready` marks the first open event
-- of an aggregate, the only place where a claim may begin, unless that one has FAILED: then the aggregate waits until an
-- operator redrives or discards it. Whatever closes an event calls outbox_promote in a second statement.

CREATE TABLE outbox_events (
    event_id          uuid        PRIMARY KEY,
    event_type        text        NOT NULL,
    aggregate_key     text        COLLATE "C" NOT NULL,
    aggregate_version bigint      NOT NULL,
    payload           jsonb       NOT NULL,
    trace_id          text,
    status            text        NOT NULL DEFAULT 'PENDING',
    -- No default: a row that did not come through outbox_enqueue must fail, not be published out of order.
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
    fillfactor = 50,                        -- room for a claim to stay on its page (HOT)
    autovacuum_vacuum_scale_factor = 0.02,  -- every row is updated twice and then deleted
    autovacuum_vacuum_insert_scale_factor = 0.02
);

-- No index mentions status or the lease, so that a claim stays HOT. The last two are for retention.
CREATE INDEX outbox_events_open ON outbox_events (aggregate_key, aggregate_version)
    WHERE published_at IS NULL AND discarded_at IS NULL;
CREATE INDEX outbox_events_ready ON outbox_events (created_at) WHERE ready;
CREATE INDEX outbox_events_published_at ON outbox_events (published_at) WHERE published_at IS NOT NULL;
CREATE INDEX outbox_events_discarded_at ON outbox_events (discarded_at) WHERE discarded_at IS NOT NULL;

COMMENT ON COLUMN outbox_events.ready IS
    'Head of its aggregate: no earlier version is still open. Kept exact by outbox_enqueue and by whatever closes an event.';

-- The content of an event cannot be changed.
GRANT SELECT, INSERT, DELETE,
      UPDATE (status, ready, attempt_count, next_retry_at, locked_by, locked_at, lease_until, last_error, published_at,
              discarded_at)
   ON outbox_events TO grantwire_functions;
