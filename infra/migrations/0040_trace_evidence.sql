-- What a trace shows beside the states (SPEC T2): the number of the event's message in the stream, and what the receiver
-- responded to each attempt to send a notification. The columns are nullable and have no default, so PostgreSQL does not
-- rewrite the tables, and the functions of the previous release can still write them.

ALTER TABLE outbox_events ADD COLUMN stream_sequence bigint;
COMMENT ON COLUMN outbox_events.stream_sequence IS
    'The sequence number of the message in the stream; NULL until it is published, and in older rows.';
GRANT UPDATE (stream_sequence) ON outbox_events TO grantwire_functions;

ALTER TABLE notifications ADD COLUMN responses jsonb;
COMMENT ON COLUMN notifications.responses IS
    'The last 20 attempts to send it: an array of objects with at, the time, and response; NULL if there was none.';
