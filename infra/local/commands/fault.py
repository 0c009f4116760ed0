"""`make fault`: a fault in the local stack on purpose, to practise with docs/runbook.md."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from infra.local.errors import CommandError
from infra.local.faults import database, functions, streams
from infra.local.stack import selection
from infra.local.stack.embedded import EmbeddedStack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from infra.local.progress import Progress


class Fault(NamedTuple):
    """A fault: what it does, the problems that the status shows, how it ends, how to make it and how to undo it.

    Without `undo`, the stack or a person ends it.
    """

    help: str
    codes: tuple[str, ...]
    end: str
    make: Callable[[EmbeddedStack], None]
    undo: Callable[[EmbeddedStack], None] | None = None


def fault(arguments: Sequence[str], progress: Progress) -> int:
    """Make one fault, and print how to see it and how to end it."""
    lines = "\n".join(f"  {name:12} {known.help}" for name, known in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="infra.local fault",
        description=f"{__doc__}\n\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("fault", choices=FAULTS, help="what to break")
    parser.add_argument("--repair", action="store_true", help="undo the fault")
    options = parser.parse_args(arguments)
    chosen = FAULTS[options.fault]
    stack = selection.current_stack(progress)
    if not isinstance(stack, EmbeddedStack):
        raise CommandError("Only the embedded stack can be broken.", hint="Start it with `make up`.")
    if not options.repair:
        chosen.make(stack)
        progress.print_line(f"{options.fault}: {chosen.help}.")
        progress.print_line(f"See it: `grantwire status` names {' and '.join(chosen.codes)}.")
        progress.print_line(f"End it: {chosen.end}.")
        repair = "nothing" if chosen.undo is None else f"make fault ARGS='{options.fault} --repair'"
        progress.print_line(f"What to do: docs/runbook.md. Undo the fault: {repair}")
    elif chosen.undo is None:
        raise CommandError(f"`{options.fault}` has no repair.", hint=f"{chosen.end}. See docs/runbook.md.")
    else:
        chosen.undo(stack)
        progress.print_line(f"{options.fault}: repaired.")
    return 0


FAULTS = {
    "nats": Fault(
        "NATS is stopped",
        ("NATS_UNAVAILABLE",),
        "start NATS with `make up`",
        lambda stack: stack.nats.stop(),
        lambda stack: stack.nats.start(),
    ),
    "database": Fault(
        "PostgreSQL is stopped",
        ("DATABASE_UNAVAILABLE",),
        "start PostgreSQL with `make up`",
        lambda stack: stack.postgres.stop(),
        lambda stack: stack.postgres.start(),
    ),
    "stream": Fault(
        "the stream of events is deleted, with its messages",
        ("STREAM_MISSING",),
        "create it again with `make up`; the events are published again, and STREAM_HISTORY_LOST is shown for an hour",
        streams.delete_stream,
        streams.configure,
    ),
    "lost": Fault(
        "the stream loses all messages but the last",
        ("STREAM_HISTORY_LOST", "EVENTS_LOST"),
        "by itself: the events are published again, and the problem is shown for an hour",
        streams.lose_messages,
    ),
    "too-old": Fault(
        "the stream loses a message whose event is older than the memory of the inbox",
        ("EVENTS_TOO_OLD", "EVENTS_UNCONFIRMED"),
        "decide about the event",
        database.lose_old_event,
        database.find_old_event,
    ),
    "consumer": Fault(
        "the consumer of bridge_events is paused, and one message that waits is a lag",
        ("CONSUMER_LAG", "EVENTS_UNCONFIRMED"),
        "resume the consumer",
        streams.pause_consumer,
        streams.resume_consumer,
    ),
    "relay": Fault(
        "the schedule of relay_outbox is disabled, so that events stay in the outbox",
        ("EVENTS_OLD", "WORKER_LATE"),
        "enable the schedule",
        functions.switch_schedule(functions.RELAY, enabled=False),
        functions.switch_schedule(functions.RELAY, enabled=True),
    ),
    "unchecked": Fault(
        "relay_outbox lacks the privilege to compare published events with the inbox",
        ("EVENTS_UNCHECKED",),
        "grant the privilege; it takes three minutes until the problem is shown",
        database.execute(database.REVOKE_CONFIRMATION),
        database.execute(database.GRANT_CONFIRMATION),
    ),
    "worker": Fault(
        "the schedule of deliver_notifications is disabled",
        ("NOTIFICATIONS_OVERDUE", "WORKER_LATE"),
        "enable the schedule",
        functions.switch_schedule(functions.DELIVERY, enabled=False),
        functions.switch_schedule(functions.DELIVERY, enabled=True),
    ),
    "receiver": Fault(
        "the receiver does not respond, and notifications become dead letters",
        ("DEAD_LETTERS",),
        "repair the receiver, then redrive the dead letters",
        functions.set_receiver(functions.REFUSING),
        functions.restore_receiver,
    ),
    "circuit": Fault(
        "the receiver does not respond, and the circuit opens",
        ("RECEIVER_UNAVAILABLE", "NOTIFICATIONS_OVERDUE"),
        "repair the receiver",
        functions.set_receiver(functions.AWAY),
        functions.restore_receiver,
    ),
    "poison": Fault(
        "a message that is not an event is in the stream",
        ("DEAD_LETTERS",),
        "discard the dead letter",
        streams.publish_poison,
    ),
    "transaction": Fault(
        "a transaction that writes entitlements stays open",
        ("TRANSACTION_OPEN",),
        "find the session with `make doctor`, and end it; the problem is shown after a minute",
        database.hold("entitlements"),
        database.let_go("entitlements"),
    ),
    "lease": Fault(
        "a worker was killed while it executed a command, and a session holds the row, so that no other takes it over",
        ("LEASES_EXPIRED",),
        "find the session with `make doctor`, and end it; a worker then executes the command",
        database.hold("lease"),
        database.let_go("lease"),
    ),
    "privilege": Fault(
        "expire_entitlements lacks a privilege, so that starts and ends are not recorded",
        ("WORKER_DEGRADED", "TIMES_OVERDUE"),
        "grant the privilege that the last error names",
        database.execute(database.REVOKE_EXPIRY),
        database.execute(database.GRANT_EXPIRY),
    ),
    "failure": Fault(
        "each step of run_operator_commands ends with an error",
        ("WORKER_FAILED",),
        "remove the trigger make_fault",
        database.execute(database.CREATE_FAILURE),
        database.execute(database.DROP_FAILURE),
    ),
    "command": Fault(
        "a command that cannot be executed is given",
        ("COMMANDS_FAILED",),
        "by itself after a day",
        database.execute(database.INSERT_COMMAND),
        database.execute(database.DELETE_COMMANDS),
    ),
    "client": Fault(
        "a client expires in three days",
        ("CLIENT_EXPIRES",),
        "rotate the client with `grantwire clients rotate makefault000 --expires-in 90d`, or revoke it",
        database.execute(database.INSERT_CLIENT),
        database.execute(database.DELETE_CLIENT),
    ),
    "schema": Fault(
        "a function of the database differs from the code",
        ("SCHEMA_DIFFERS",),
        "migrate with `make up`",
        database.execute(database.CHANGE_SCHEMA),
        database.migrate,
    ),
    "read-model": Fault(
        "a row of the read model is wrong",
        ("READ_MODEL_DIFFERS",),
        "rebuild the read model; the next run of sweep_retention, once an hour, finds that it is right",
        database.execute_and_sweep(database.MAKE_WRONG),
        database.execute_and_sweep(database.MAKE_RIGHT),
    ),
    "partitions": Fault(
        "the audit has no partition for the next month",
        ("PARTITIONS_MISSING",),
        "the next run of sweep_retention, once an hour, creates it",
        database.execute(database.DROP_PARTITIONS),
        database.execute_and_sweep(None),
    ),
}
