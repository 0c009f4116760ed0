"""`make fault`: a fault in the local stack on purpose, to practise with docs/runbook.md."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
from typing import TYPE_CHECKING, NamedTuple

import nats
import nats.errors

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME
from infra.local.deployment.template import declared_parameters
from infra.local.errors import CommandError
from infra.local.servers.nats_users import INBOX_PREFIXES, TOPOLOGY, WORKERS
from infra.local.stack import selection
from infra.local.stack.embedded import EmbeddedStack
from infra.local.stack.streams import configure_streams
from infra.local.system import files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nats.aio.client import Client

    from infra.local.progress import Progress

BRIDGE = f"{STACK_NAME}-bridge-events"
DELIVERY = f"{STACK_NAME}-deliver-notifications"
POISON = b"This is not an event."
# Nothing listens on this port.
_UNREACHABLE = {
    "NOTIFICATION_SENDER": "webhook",
    "NOTIFICATION_WEBHOOK_URL": "http://127.0.0.1:9/notifications",
    "NOTIFICATION_WEBHOOK_KEYS": f"whsec_{base64.b64encode(bytes(32)).decode()}",
}
# A notification is a dead letter after two attempts, and the circuit never opens.
REFUSING = _UNREACHABLE | {
    "NOTIFICATION_DELIVERY_TUNING": "max-attempts=2",
    "NOTIFICATION_SENDER_BREAKER_FAILURES": "0",
}
# The circuit opens after two attempts, and no notification is a dead letter.
AWAY = _UNREACHABLE | {"NOTIFICATION_DELIVERY_TUNING": "", "NOTIFICATION_SENDER_BREAKER_FAILURES": "2"}


class Fault(NamedTuple):
    """A fault: what it does, how to make it and how to undo it; None: the stack, or a person, repairs it."""

    help: str
    make: Callable[[EmbeddedStack], None]
    undo: Callable[[EmbeddedStack], None] | None = None


def fault(arguments: Sequence[str], progress: Progress) -> int:
    """Make one fault, and print how to see it and how to repair it."""
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
        repair = "nothing to undo" if chosen.undo is None else f"make fault ARGS='{options.fault} --repair'"
        progress.print_line(f"See it: `grantwire status`. What to do: docs/runbook.md. Repair: {repair}")
    elif chosen.undo is None:
        raise CommandError(f"`{options.fault}` has no repair.", hint="docs/runbook.md says what a person does.")
    else:
        chosen.undo(stack)
        progress.print_line(f"{options.fault}: repaired.")
    return 0


def _change_function(stack: EmbeddedStack, function: str, variables: Mapping[str, str]) -> None:
    """Give a deployed function other variables, and keep those that it was deployed with."""
    client = aws.client("lambda", stack.emulator_url, stack.aws.access_key)
    deployed = stack.state / f"{function}.json"
    if not deployed.exists():
        configuration = client.get_function_configuration(FunctionName=function)
        files.write_record(deployed, configuration["Environment"]["Variables"])
    changed = json.loads(deployed.read_text()) | variables
    client.update_function_configuration(FunctionName=function, Environment={"Variables": changed})


def _restore_function(stack: EmbeddedStack, function: str) -> None:
    deployed = stack.state / f"{function}.json"
    if not deployed.exists():
        raise CommandError(f"{function} was not changed.", hint="`make fault` changes it.")
    _change_function(stack, function, {})
    deployed.unlink()


def _set_receiver(variables: Mapping[str, str]) -> Callable[[EmbeddedStack], None]:
    def make(stack: EmbeddedStack) -> None:
        _change_function(stack, DELIVERY, variables)
        stack.aws.invoke_async(DELIVERY)  # the change ends the current run, and the next one is due within a minute

    return make


def _restore_receiver(stack: EmbeddedStack) -> None:
    _restore_function(stack, DELIVERY)
    stack.aws.invoke_async(DELIVERY)


def _switch(function: str, *, enabled: bool) -> Callable[[EmbeddedStack], None]:
    """Return a function that switches the schedule of a worker on or off, as a wrong deployment would."""

    def switch(stack: EmbeddedStack) -> None:
        events = aws.client("events", stack.emulator_url, stack.aws.access_key)
        for rule in events.list_rules()["Rules"]:
            targets = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
            if any(target["Arn"].endswith(f":{function}") for target in targets):
                (events.enable_rule if enabled else events.disable_rule)(Name=rule["Name"])
        if enabled:
            stack.aws.invoke_async(function)

    return switch


def _delete_stream(stack: EmbeddedStack) -> None:
    """Delete the files of the event stream, as a lost disk does."""
    stack.nats.stop()
    for folder in (stack.nats.state / "jetstream").rglob(f"streams/{declared_parameters()['EventStream']}"):
        shutil.rmtree(folder)
    stack.nats.start()


def _configure(stack: EmbeddedStack) -> None:
    configure_streams(stack.nats_topology_url, stack.deployment.parameters)


def _lose_messages(stack: EmbeddedStack) -> None:
    """Let the stream lose all messages but the last, as a restored copy or a purge does."""

    async def lose(client: Client) -> None:
        jetstream = client.jetstream()
        config = (await jetstream.stream_info(declared_parameters()["EventStream"])).config
        limit = config.max_msgs
        config.max_msgs = 1
        await jetstream.update_stream(config)
        config.max_msgs = limit
        await jetstream.update_stream(config)

    _with_nats(stack.nats_topology_url, TOPOLOGY, lose)


def _publish_poison(stack: EmbeddedStack) -> None:
    async def publish(client: Client) -> None:
        await client.jetstream().publish(declared_parameters()["EventSubject"], POISON)

    _with_nats(stack.nats_url, WORKERS, publish)


async def _ignore(_error: Exception) -> None:
    """Do nothing: the failed connection raises its error."""


def _with_nats(url: str, user: str, action: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            client = await nats.connect(
                url,
                connect_timeout=2,
                max_reconnect_attempts=1,  # also of the first connection
                reconnect_time_wait=0.1,
                inbox_prefix=INBOX_PREFIXES[user],
                error_cb=_ignore,
            )
        except (nats.errors.Error, OSError) as error:
            raise CommandError("NATS does not respond.", hint="Start it with `make up`.") from error
        try:
            await action(client)
        finally:
            await client.close()

    asyncio.run(run())


FAULTS = {
    "nats": Fault("NATS is stopped", lambda stack: stack.nats.stop(), lambda stack: stack.nats.start()),
    "database": Fault(
        "PostgreSQL is stopped", lambda stack: stack.postgres.stop(), lambda stack: stack.postgres.start()
    ),
    "stream": Fault("the stream of events is deleted, with its messages", _delete_stream, _configure),
    "lost": Fault("the stream loses all messages but the last, and publishes them again by itself", _lose_messages),
    "consumer": Fault(
        "the schedule of bridge_events is disabled, so that events stay in the stream",
        _switch(BRIDGE, enabled=False),
        _switch(BRIDGE, enabled=True),
    ),
    "worker": Fault(
        "the schedule of deliver_notifications is disabled",
        _switch(DELIVERY, enabled=False),
        _switch(DELIVERY, enabled=True),
    ),
    "receiver": Fault(
        "the receiver does not respond, and notifications become dead letters",
        _set_receiver(REFUSING),
        _restore_receiver,
    ),
    "circuit": Fault("the receiver does not respond, and the circuit opens", _set_receiver(AWAY), _restore_receiver),
    "poison": Fault("a message that is not an event is in the stream", _publish_poison),
}
