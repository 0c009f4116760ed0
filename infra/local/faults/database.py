"""Faults of PostgreSQL's contents: privileges, rows and partitions, and transactions that stay open."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import psycopg

from infra.local.errors import CommandError
from infra.local.faults import streams
from infra.local.faults.functions import SWEEP
from infra.local.layer import PLAINTEXT
from infra.local.paths import CHECKOUT
from infra.local.stack import database
from infra.local.system import files, programs
from infra.local.system.processes import Launch, defer_interrupts, identify, spawn
from infra.local.toolchain.environments import python_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from subprocess import Popen
    from typing import LiteralString

    from infra.local.stack.embedded import EmbeddedStack

    Change = Callable[[EmbeddedStack], None]

# A statement that waits for a lock holds back those that come later.
_PATIENCE = "-c lock_timeout=5s"
# Programs that this process has started and must wait for, by what they hold.
_children: dict[str, list[Popen[bytes]]] = {}
# The name of the actor of a command that fails.
ACTOR = "make fault"

REVOKE_EXPIRY = "REVOKE EXECUTE ON FUNCTION expire_due FROM grantwire_functions"
GRANT_EXPIRY = "GRANT EXECUTE ON FUNCTION expire_due TO grantwire_functions"
REVOKE_CONFIRMATION = "REVOKE UPDATE ON outbox_confirmation FROM grantwire_functions"
GRANT_CONFIRMATION = "GRANT UPDATE ON outbox_confirmation TO grantwire_functions"

# A function that a deployment by hand has changed.
CHANGE_SCHEMA = "UPDATE schema_definitions SET checksum = reverse(checksum) WHERE name LIKE '%settled_through.sql'"

# An error of the worker, and not of a dependency, in each poll for commands.
CREATE_FAILURE = """
CREATE FUNCTION make_fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'made by make fault'; END $$;
CREATE TRIGGER make_fault BEFORE UPDATE ON operator_commands FOR EACH STATEMENT EXECUTE FUNCTION make_fault()
"""
DROP_FAILURE = "DROP FUNCTION IF EXISTS make_fault CASCADE"

# A command that no release can execute fails at once.
INSERT_COMMAND = f"""
INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source)
VALUES (gen_random_uuid(), 'dead_letters.redrive', '{{}}', '{ACTOR}', 'practice', '{ACTOR}')
"""  # noqa: S608 - constants
DELETE_COMMANDS = f"DELETE FROM operator_commands WHERE actor = '{ACTOR}'"  # noqa: S608 - a constant

# A client whose end is near. Nobody knows its token.
INSERT_CLIENT = f"""
INSERT INTO api_clients (client_id, name, scopes, token_hash, expires_at)
VALUES ('makefault000', '{ACTOR}', ARRAY['changes:read'], repeat('0', 64), now() + interval '3 days')
    ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants
DELETE_CLIENT = "DELETE FROM api_clients WHERE client_id = 'makefault000'"

# Rows of the newest change, as a bug or a change by hand leaves them.
MAKE_WRONG = """
UPDATE user_entitlements r SET version = r.version + 1000
  FROM (SELECT user_id, stock_keeping_unit FROM user_entitlements ORDER BY changed_at DESC LIMIT 1) AS newest
 WHERE (r.user_id, r.stock_keeping_unit) = (newest.user_id, newest.stock_keeping_unit)
"""
MAKE_RIGHT = """
UPDATE user_entitlements r SET version = e.version FROM entitlements e
 WHERE (r.user_id, r.stock_keeping_unit) = (e.user_id, e.stock_keeping_unit) AND r.version > e.version
"""

# The partitions of the months to come, which are empty.
DROP_PARTITIONS = """
DO $$
DECLARE
    partition text;
BEGIN
    FOR partition IN SELECT i.inhrelid::regclass::text FROM pg_inherits i
                      WHERE i.inhparent = 'entitlement_audit'::regclass
                        AND i.inhrelid::regclass::text > to_char(now() AT TIME ZONE 'UTC',
                                                                 '"entitlement_audit_y"YYYY"m"MM') LOOP
        EXECUTE format('DROP TABLE %s', partition);
    END LOOP;
END
$$
"""

# An event that has arrived becomes one that has not, of a time before which the inbox may have forgotten events.
AGE_EVENT = """
WITH chosen AS (
    SELECT o.event_id, o.created_at, o.stream_sequence FROM outbox_events o
      JOIN processed_events p USING (event_id)
     WHERE o.status = 'PUBLISHED' AND o.stream_sequence IS NOT NULL
     ORDER BY o.published_at DESC LIMIT 1),
forgotten AS (DELETE FROM processed_events p USING chosen c WHERE p.event_id = c.event_id),
aged AS (
    UPDATE outbox_events o SET created_at = o.created_at - interval '10 years' FROM chosen c
     WHERE o.event_id = c.event_id)
SELECT c.event_id::text, c.stream_sequence FROM chosen c
"""
RESTORE_EVENT = """
WITH restored AS (
    UPDATE outbox_events SET created_at = created_at + interval '10 years'
     WHERE event_id = %(event_id)s AND created_at < now() - interval '9 years'
    RETURNING event_id),
known AS (INSERT INTO processed_events SELECT event_id FROM restored ON CONFLICT DO NOTHING)
DELETE FROM outbox_unconfirmed u WHERE u.event_id = %(event_id)s
"""


def execute(statement: LiteralString) -> Change:
    """Return a function that executes a statement as the owner of the database."""

    def change(stack: EmbeddedStack) -> None:
        _execute(stack, statement)

    return change


def execute_and_sweep(statement: LiteralString | None) -> Change:
    """Return a function that executes a statement, and starts sweep_retention, which finds and repairs things."""

    def change(stack: EmbeddedStack) -> None:
        if statement is not None:
            _execute(stack, statement)
        stack.aws.invoke_async(SWEEP)

    return change


def migrate(stack: EmbeddedStack) -> None:
    """Apply the functions of the checkout again."""
    database.migrate(stack.cluster, stack.state / "migrations")


def lose_old_event(stack: EmbeddedStack) -> None:
    """Let the stream lose the message of an event that is older than the memory of the inbox."""
    record = _event_record(stack)
    if record.exists():
        raise CommandError("An event is lost already.", hint="make fault ARGS='too-old --repair'")
    rows = _execute(stack, AGE_EVENT)
    if not rows:
        raise CommandError("No event has arrived yet.", hint="Grant an entitlement first.")
    ((event_id, sequence),) = rows
    files.write_record(record, {"event_id": event_id})
    streams.delete_message(stack, sequence)


def find_old_event(stack: EmbeddedStack) -> None:
    """Record again that the event has arrived."""
    record = _event_record(stack)
    event = files.read_record(record)
    if not event:
        raise CommandError("No event was lost by this fault.", hint="make fault ARGS=too-old")
    _execute(stack, RESTORE_EVENT, event)
    record.unlink()


def hold(what: str) -> Change:
    """Return a function that starts a process with an open transaction, which holds something (`hold.py`)."""

    def start(stack: EmbeddedStack) -> None:
        url = database.functions_url(stack.database_url, stack.cluster)
        record = _program_record(stack, what)
        record.parent.mkdir(parents=True, exist_ok=True)
        launch = Launch(
            command=[sys.executable, "-m", "infra.local.faults.hold", what],
            environment={**python_environment(), **PLAINTEXT, "DATABASE_URL": url},
            log=record.parent / "program.log",
            directory=CHECKOUT,
        )
        with defer_interrupts():
            programs.stop_recorded(record)
            child = spawn(launch)
            _children.setdefault(what, []).append(child)
            process = identify(child.pid)
            if process is not None:
                files.write_record(record, process._asdict())

    return start


def let_go(what: str) -> Change:
    """Return a function that ends the process, and so its transaction."""

    def end(stack: EmbeddedStack) -> None:
        programs.stop_recorded(_program_record(stack, what))
        for child in _children.pop(what, []):
            child.wait()

    return end


def _program_record(stack: EmbeddedStack, what: str) -> Path:
    return stack.state / f"fault-{what}" / "tool.json"  # `make down` ends what a file of this name records


def _event_record(stack: EmbeddedStack) -> Path:
    return stack.state / "fault-event.json"


def _execute(stack: EmbeddedStack, statement: LiteralString, parameters: Mapping[str, Any] | None = None) -> list[Any]:
    try:
        with psycopg.connect(stack.database_url, autocommit=True, connect_timeout=5, options=_PATIENCE) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []
    except psycopg.errors.LockNotAvailable as error:
        hint = "Repair the fault `lease` first, or find the session with `make doctor`."
        raise CommandError("Another session holds a lock that this needs.", hint=hint) from error
    except psycopg.OperationalError as error:
        raise CommandError("PostgreSQL does not respond.", hint="Start it with `make up`.") from error
