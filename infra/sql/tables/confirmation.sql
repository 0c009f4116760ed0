-- Confirmation of published events (W1, W2, ADR 0045). JetStream acknowledges a message before it is on disk, so
-- PUBLISHED means "handed over". An event is finished when the inbox has it, or a dead letter of its message exists. The relay
-- compares the outbox with the inbox behind a mark, and puts back what the stream has lost.

-- One row: the turn of the relay that checks, the mark, and what the stream looked like at the last check.
CREATE TABLE outbox_confirmation (
    only_row            boolean     PRIMARY KEY DEFAULT true,
    mark                timestamptz NOT NULL DEFAULT '-infinity',
    checked_at          timestamptz,
    completed_at        timestamptz,
    has_more            boolean     NOT NULL DEFAULT false,
    claim               text        COLLATE "C",
    lease_until         timestamptz,
    stream              text        COLLATE "C",
    stream_created_at   timestamptz,
    generation_since    timestamptz,
    first_sequence      bigint,
    last_sequence       bigint,
    deleted_messages    bigint,
    newest_event_id     uuid,
    newest_sequence     bigint,
    newest_published_at timestamptz,
    losses_until        timestamptz,
    CONSTRAINT outbox_confirmation_one_row CHECK (only_row),
    CONSTRAINT outbox_confirmation_claim CHECK ((claim IS NULL) = (lease_until IS NULL))
);
INSERT INTO outbox_confirmation DEFAULT VALUES;

COMMENT ON COLUMN outbox_confirmation.mark IS
    'Every event that was published up to this time is finished, or listed in outbox_unconfirmed.';
COMMENT ON COLUMN outbox_confirmation.completed_at IS 'End of the last check that succeeded.';
COMMENT ON COLUMN outbox_confirmation.generation_since IS
    'When a check first saw this generation of the stream. Sequences of events published before are not comparable.';
COMMENT ON COLUMN outbox_confirmation.newest_event_id IS
    'One of the newest events at the last check: if the stream has another message there now, it was cut back.';
COMMENT ON COLUMN outbox_confirmation.losses_until IS
    'stream_losses covers every event that was published up to this time and lost with a range of the stream.';

-- Published events that are not finished, as far as the mark has passed them. The number of WAITING rows is limited.
CREATE TABLE outbox_unconfirmed (
    event_id        uuid        PRIMARY KEY,
    state           text        NOT NULL,
    changed_at      timestamptz NOT NULL,
    stream_sequence bigint,
    found_at        timestamptz NOT NULL,
    passed_at       timestamptz,
    examined_at     timestamptz,
    CONSTRAINT outbox_unconfirmed_state CHECK (state IN ('WAITING', 'REPUBLISHED', 'TOO_OLD'))
);
CREATE INDEX outbox_unconfirmed_changed_at ON outbox_unconfirmed (changed_at) WHERE state <> 'TOO_OLD';
CREATE INDEX outbox_unconfirmed_examined ON outbox_unconfirmed (examined_at NULLS FIRST, stream_sequence);
CREATE INDEX outbox_unconfirmed_too_old ON outbox_unconfirmed (found_at, event_id) WHERE state = 'TOO_OLD';

COMMENT ON COLUMN outbox_unconfirmed.state IS
    'WAITING: for the bridge. REPUBLISHED: put back, and not in the inbox yet. TOO_OLD: lost, but the inbox may have'
    ' forgotten it: a dead letter, about which a person decides.';
COMMENT ON COLUMN outbox_unconfirmed.changed_at IS 'created_at of the event: the time of the change.';
COMMENT ON COLUMN outbox_unconfirmed.passed_at IS
    'When a check first saw that the stream has the message, and its consumer will not deliver it again.';

-- Ranges that the stream lost. Outside readers lost them, too, so that the events in them are published again even if
-- the inbox has them. DELETED are single messages, of which only unfinished ones are published again.
CREATE TABLE stream_losses (
    loss_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cause          text        NOT NULL,
    stream         text        COLLATE "C" NOT NULL,
    first_sequence bigint,
    last_sequence  bigint,
    detected_at    timestamptz NOT NULL,
    examine_after  timestamptz NOT NULL,
    examine_below  bigint      NOT NULL,
    examined_until timestamptz,
    events_lost    bigint      NOT NULL DEFAULT 0,
    events_republished bigint  NOT NULL DEFAULT 0,
    completed_at   timestamptz,
    CONSTRAINT stream_losses_cause CHECK (cause IN ('CUT', 'PURGED', 'RECREATED', 'DELETED'))
);
CREATE INDEX stream_losses_open ON stream_losses (loss_id) WHERE completed_at IS NULL;
CREATE INDEX stream_losses_detected_at ON stream_losses (detected_at);

COMMENT ON COLUMN stream_losses.first_sequence IS 'The lost range, as far as it is known.';
COMMENT ON COLUMN stream_losses.examine_after IS
    'Events published after it and up to detected_at, with sequences below examine_below, are compared with the stream.';
COMMENT ON COLUMN stream_losses.examined_until IS
    'The events published up to this time are examined. NULL: from the beginning.';

-- Each time that an event was put back, and why.
CREATE TABLE outbox_republications (
    event_id        uuid        NOT NULL,
    number          integer     NOT NULL,
    cause           text        NOT NULL,
    loss_id         bigint,
    stream_sequence bigint,
    put_back_at     timestamptz NOT NULL,
    PRIMARY KEY (event_id, number),
    CONSTRAINT outbox_republications_cause CHECK (cause IN ('LOST', 'NOT_DELIVERED', 'RANGE_LOST'))
);
CREATE INDEX outbox_republications_put_back_at ON outbox_republications (put_back_at);

COMMENT ON COLUMN outbox_republications.stream_sequence IS 'Where the lost message was.';
COMMENT ON COLUMN outbox_republications.cause IS
    'LOST: the stream no longer had the message. NOT_DELIVERED: it had, but its consumer would not deliver it again.'
    ' RANGE_LOST: it was in a range that outside readers lost, see stream_losses.';

GRANT SELECT, UPDATE ON outbox_confirmation TO grantwire_functions;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_unconfirmed, stream_losses, outbox_republications TO grantwire_functions;
