-- The tables of operations (Q2, G4, T1, T8; ADR 0019, ADR 0042): the actions of operators, the commands that they have
-- given, the last run of each worker, and one sample of the status for each minute.

-- Every administrative action leaves a row, in the transaction of the action. A command has one row for each of its
-- batches. A trigger refuses changes of existing rows (infra/sql/triggers.sql). The owner of the schema can disable it.
CREATE TABLE operator_actions (
    action_id       uuid        NOT NULL,
    batch           integer     NOT NULL,
    actor           text        NOT NULL,
    reason          text        NOT NULL,
    source          text        NOT NULL,
    action          text        NOT NULL,
    kind            text        NOT NULL,
    selection       jsonb       NOT NULL,
    dry_run         boolean     NOT NULL,
    client_id       text        COLLATE "C",
    dead_letter_ids uuid[],
    count           integer     NOT NULL,
    occurred_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (action_id, batch),
    CONSTRAINT operator_actions_actor CHECK (char_length(actor) BETWEEN 1 AND 500),
    CONSTRAINT operator_actions_reason CHECK (char_length(reason) BETWEEN 1 AND 500),
    CONSTRAINT operator_actions_source CHECK (char_length(source) BETWEEN 1 AND 500),
    CONSTRAINT operator_actions_action CHECK (
        CASE kind WHEN 'client' THEN action IN ('create', 'rotate', 'limits', 'revoke')
                  WHEN 'read_model' THEN action = 'rebuild'
                  WHEN 'outbox' THEN action IN ('redrive', 'discard')
                  WHEN 'notification' THEN action IN ('redrive', 'discard')
                  WHEN 'nats' THEN action IN ('redrive', 'discard')
                  ELSE false END),
    -- No role but the owner can insert both columns, so a role can only record actions of its own kind.
    CONSTRAINT operator_actions_client CHECK ((kind = 'client') = (client_id IS NOT NULL)),
    CONSTRAINT operator_actions_dead_letters
        CHECK ((kind IN ('outbox', 'notification', 'nats')) = (dead_letter_ids IS NOT NULL)),
    CONSTRAINT operator_actions_count
        CHECK (count >= 0 AND (dead_letter_ids IS NULL OR count = cardinality(dead_letter_ids)))
);

CREATE INDEX operator_actions_time ON operator_actions (occurred_at);
CREATE INDEX operator_actions_client ON operator_actions (client_id, occurred_at) WHERE client_id IS NOT NULL;
-- The actions on a dead letter.
CREATE INDEX operator_actions_dead_letters ON operator_actions USING gin (dead_letter_ids)
    WHERE dead_letter_ids IS NOT NULL;

COMMENT ON TABLE operator_actions IS 'Administrative actions. Rows are only added, and the sweep never deletes them.';
COMMENT ON COLUMN operator_actions.source IS
    'Where the command came from, stated by the program that executed it: function and request id, or host and program.';
COMMENT ON COLUMN operator_actions.selection IS 'The parameters of the command, without secrets.';
COMMENT ON COLUMN operator_actions.dead_letter_ids IS
    'The changed dead letters; for a dry run, those that would have changed; for a redrive to NATS, those published.';
COMMENT ON COLUMN operator_actions.count IS
    'How many dead letters, clients or rows of the read model this transaction changed.';

-- Rows can be added but not changed or deleted, and occurred_at is always the time of the database.
GRANT INSERT (action_id, batch, actor, reason, source, action, kind, selection, dry_run, dead_letter_ids, count)
   ON operator_actions TO grantwire_functions;
GRANT INSERT (action_id, batch, actor, reason, source, action, kind, selection, dry_run, client_id, count)
   ON operator_actions TO grantwire_clients;

-- One row for each worker, replaced at the end of each run.
CREATE TABLE worker_heartbeats (
    worker          text        COLLATE "C" PRIMARY KEY,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL,
    outcome         text        NOT NULL,
    error           text,
    result          jsonb       NOT NULL,
    -- Runs in a row that were not OK.
    failures        integer     NOT NULL,
    last_success_at timestamptz,
    resumed_at      timestamptz,
    CONSTRAINT worker_heartbeats_worker_length CHECK (char_length(worker) BETWEEN 1 AND 64),
    CONSTRAINT worker_heartbeats_outcome CHECK (outcome IN ('OK', 'DEGRADED', 'FAILED')),
    CONSTRAINT worker_heartbeats_error_length CHECK (char_length(error) <= 500),
    CONSTRAINT worker_heartbeats_result CHECK (
        jsonb_typeof(result) = 'object' AND octet_length(result::text) <= 16384),
    CONSTRAINT worker_heartbeats_failures CHECK (failures >= 0)
) WITH (fillfactor = 50); -- room for HOT updates

COMMENT ON COLUMN worker_heartbeats.outcome IS
    'DEGRADED: PostgreSQL, NATS or the receiver was unavailable at the end of the run. FAILED: any other error.';

COMMENT ON COLUMN worker_heartbeats.resumed_at IS
    'When a run first reported after the last one that ended. It counts once, so that a worker whose runs never end is late.';

GRANT SELECT, INSERT, UPDATE ON worker_heartbeats TO grantwire_functions;

-- Commands of operators that a worker executes in batches. A command is open until it is DONE or FAILED. While a worker
-- executes it, the worker has a lease on it, and every change of the row must name the claim (ADR 0010).
CREATE TABLE operator_commands (
    command_id    uuid        PRIMARY KEY,
    kind          text        COLLATE "C" NOT NULL,
    arguments     jsonb       NOT NULL,
    actor         text        NOT NULL,
    reason        text        NOT NULL,
    source        text        NOT NULL,
    status        text        NOT NULL DEFAULT 'PENDING',
    -- Where the next batch starts, and how many batches have begun. A batch moves both in the transaction of its changes.
    position      text,
    batches       integer     NOT NULL DEFAULT 0,
    selected      bigint      NOT NULL DEFAULT 0,
    done          bigint      NOT NULL DEFAULT 0,
    skipped       jsonb       NOT NULL DEFAULT '{}',
    result        jsonb,
    last_error    text,
    attempt_count integer     NOT NULL DEFAULT 0,
    next_run_at   timestamptz NOT NULL DEFAULT now(),
    locked_by     text,
    locked_at     timestamptz,
    lease_until   timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz,
    CONSTRAINT operator_commands_kind CHECK (
        kind IN ('dead_letters.redrive', 'dead_letters.discard', 'read_model.rebuild', 'read_model.verify')),
    CONSTRAINT operator_commands_arguments CHECK (
        jsonb_typeof(arguments) = 'object' AND octet_length(arguments::text) <= 65536),
    CONSTRAINT operator_commands_actor CHECK (char_length(actor) BETWEEN 1 AND 500),
    CONSTRAINT operator_commands_reason CHECK (char_length(reason) BETWEEN 1 AND 500),
    CONSTRAINT operator_commands_source CHECK (char_length(source) BETWEEN 1 AND 500),
    CONSTRAINT operator_commands_status CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED')),
    CONSTRAINT operator_commands_finished CHECK ((status IN ('DONE', 'FAILED')) = (finished_at IS NOT NULL)),
    CONSTRAINT operator_commands_started CHECK (status <> 'RUNNING' OR started_at IS NOT NULL),
    CONSTRAINT operator_commands_leased CHECK (
        num_nulls(locked_by, locked_at, lease_until) IN (0, 3) AND (locked_by IS NULL OR status = 'RUNNING')),
    CONSTRAINT operator_commands_counts CHECK (selected >= 0 AND done >= 0 AND batches >= 0 AND attempt_count >= 0),
    CONSTRAINT operator_commands_skipped CHECK (jsonb_typeof(skipped) = 'object')
);

CREATE INDEX operator_commands_open ON operator_commands (next_run_at) WHERE finished_at IS NULL;
-- For the list, and for retention.
CREATE INDEX operator_commands_created ON operator_commands (created_at, command_id);
CREATE INDEX operator_commands_finished ON operator_commands (finished_at) WHERE finished_at IS NOT NULL;

COMMENT ON COLUMN operator_commands.command_id IS 'Equal to the action_id of the rows in operator_actions.';

-- The content of a command cannot be updated.
GRANT SELECT, INSERT, DELETE,
      UPDATE (status, position, batches, selected, done, skipped, result, last_error, attempt_count, next_run_at,
              locked_by, locked_at, lease_until, started_at, updated_at, finished_at)
   ON operator_commands TO grantwire_functions;

-- One row a minute, so that the last 24 hours can be shown without CloudWatch.
CREATE TABLE status_samples (
    sampled_at             timestamptz      PRIMARY KEY,
    outbox_pending         bigint           NOT NULL,
    outbox_failed          bigint           NOT NULL,
    oldest_pending_seconds double precision NOT NULL,
    -- NULL if the bridge did not know it.
    consumer_lag           bigint,
    notifications_pending  bigint           NOT NULL,
    dead_letters           bigint           NOT NULL,
    published              bigint           NOT NULL,
    processed              bigint           NOT NULL,
    sent                   bigint           NOT NULL,
    -- Up to which time every change had arrived, and how old that time was (W3).
    settled_through        timestamptz      NOT NULL,
    settled_age_seconds    double precision NOT NULL
);

-- The sweep locks rows before it deletes them, which requires the UPDATE privilege on at least one column.
GRANT SELECT, INSERT, DELETE, UPDATE (sent) ON status_samples TO grantwire_functions;
