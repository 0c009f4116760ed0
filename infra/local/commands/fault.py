"""`make fault`: a fault in the local stack on purpose, to practise with docs/runbook.md."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from typing import TYPE_CHECKING

import nats
import nats.errors

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME
from infra.local.deployment.template import declared_parameters
from infra.local.errors import CommandError
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS
from infra.local.stack import selection
from infra.local.stack.embedded import EmbeddedStack
from infra.local.system import files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

DELIVERY = f"{STACK_NAME}-deliver-notifications"
POISON = b"This is not an event."
# Nothing listens on this port. A notification is a dead letter after two attempts, not after ten.
UNREACHABLE = {
    "NOTIFICATION_SENDER": "webhook",
    "NOTIFICATION_WEBHOOK_URL": "http://127.0.0.1:9/notifications",
    "NOTIFICATION_WEBHOOK_KEYS": f"whsec_{base64.b64encode(bytes(32)).decode()}",
    "NOTIFICATION_DELIVERY_TUNING": "max-attempts=2",
}


def fault(arguments: Sequence[str], progress: Progress) -> int:
    """Make one fault, and print how to see it and how to repair it."""
    parser = argparse.ArgumentParser(prog="infra.local fault", description=__doc__)
    parser.add_argument("fault", choices=("nats", "poison", "receiver"), help="what to break")
    parser.add_argument("--repair", action="store_true", help="undo the fault `receiver`")
    options = parser.parse_args(arguments)
    stack = selection.current_stack(progress)
    if not isinstance(stack, EmbeddedStack):
        raise CommandError("Only the embedded stack can be broken.", hint="Start it with `make up`.")
    if options.fault == "receiver":
        _set_receiver(stack, away=not options.repair)
        progress.print_line("The receiver is back." if options.repair else "The receiver of notifications is away.")
    elif options.repair:
        raise CommandError("Only `receiver` is repaired this way.", hint="`make up` starts NATS; discard the poison.")
    elif options.fault == "nats":
        stack.nats.stop()
        progress.print_line("NATS is stopped. `make up` starts it again.")
    else:
        asyncio.run(_publish(stack.nats_url, POISON))
        progress.print_line("A message that is not an event is in the stream.")
    if not options.repair:
        progress.print_line("See it: `grantwire status`. What to do: docs/runbook.md")
    return 0


def _set_receiver(stack: EmbeddedStack, *, away: bool) -> None:
    """Configure the deployed delivery with a receiver that does not respond, or as it was deployed."""
    functions = aws.client("lambda", stack.emulator_url, stack.aws.access_key)
    deployed = stack.state / "delivery.json"
    if away and not deployed.exists():
        configuration = functions.get_function_configuration(FunctionName=DELIVERY)
        files.write_record(deployed, configuration["Environment"]["Variables"])
    if not deployed.exists():
        raise CommandError("The receiver was not broken.", hint="`make fault ARGS=receiver` breaks it.")
    variables = json.loads(deployed.read_text()) | (UNREACHABLE if away else {})
    functions.update_function_configuration(FunctionName=DELIVERY, Environment={"Variables": variables})
    stack.aws.invoke_async(DELIVERY)  # the change ends the current run, and the next one is due within a minute
    if not away:
        deployed.unlink()


async def _ignore(_error: Exception) -> None:
    """Do nothing: the failed connection raises its error."""


async def _publish(url: str, payload: bytes) -> None:
    try:
        client = await nats.connect(
            url,
            connect_timeout=2,
            max_reconnect_attempts=1,  # also of the first connection
            reconnect_time_wait=0.1,
            inbox_prefix=INBOX_PREFIXES[WORKERS],
            error_cb=_ignore,
        )
    except (nats.errors.Error, OSError) as error:
        raise CommandError("NATS does not respond.", hint="Start it with `make up`.") from error
    await client.jetstream().publish(declared_parameters()["EventSubject"], payload)
    await client.close()
