"""Faults of NATS: streams and messages that are lost, a consumer that is paused, a message that is not an event."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import nats
import nats.errors

from infra.local.deployment.template import declared_parameters
from infra.local.errors import CommandError
from infra.local.faults.functions import OPERATIONS, change_function, restore_function
from infra.local.servers.nats_users import FAULTS, TOPOLOGY, WORKERS, Names, inbox_prefix
from infra.local.stack.streams import configure_streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client

    from infra.local.stack.embedded import EmbeddedStack

POISON = b"This is not an event."
# A person who practises has long finished then.
_PAUSE = timedelta(days=1)


def delete_stream(stack: EmbeddedStack) -> None:
    """Delete the files of the event stream, as a lost disk does."""
    stack.nats.stop()
    for folder in (stack.nats.state / "jetstream").rglob(f"streams/{_stream()}"):
        shutil.rmtree(folder)
    stack.nats.start()


def configure(stack: EmbeddedStack) -> None:
    """Create the missing streams and consumers."""
    configure_streams(stack.nats_topology_url, stack.deployment.parameters)


def lose_messages(stack: EmbeddedStack) -> None:
    """Let the stream lose all messages but the last, as a restored copy or a purge does."""

    async def lose(client: Client) -> None:
        jetstream = client.jetstream()
        config = (await jetstream.stream_info(_stream())).config
        limit = config.max_msgs
        config.max_msgs = 1
        await jetstream.update_stream(config)
        config.max_msgs = limit
        await jetstream.update_stream(config)

    with_nats(stack.nats_topology_url, TOPOLOGY, lose)


def delete_message(stack: EmbeddedStack, sequence: int) -> None:
    """Delete one message from the stream."""

    async def delete(client: Client) -> None:
        await client.jetstream().delete_msg(_stream(), sequence)

    with_nats(stack.nats.url_for(FAULTS), FAULTS, delete)


def pause_consumer(stack: EmbeddedStack) -> None:
    """Let NATS deliver nothing to the bridge, and report each message that waits."""

    async def pause(client: Client) -> None:
        until = (datetime.now(UTC) + _PAUSE).isoformat(timespec="seconds").replace("+00:00", "Z")
        await client.jetstream().pause_consumer(_stream(), Names().durable, until)

    with_nats(stack.nats.url_for(FAULTS), FAULTS, pause)
    change_function(stack, OPERATIONS, {"STATUS_CONSUMER_LAG": "0"})


def resume_consumer(stack: EmbeddedStack) -> None:
    """Let NATS deliver to the bridge again."""

    async def resume(client: Client) -> None:
        await client.jetstream().resume_consumer(_stream(), Names().durable)

    with_nats(stack.nats.url_for(FAULTS), FAULTS, resume)
    restore_function(stack, OPERATIONS)


def publish_poison(stack: EmbeddedStack) -> None:
    """Publish a message that is not an event."""

    async def publish(client: Client) -> None:
        await client.jetstream().publish(declared_parameters()["EventSubject"], POISON)

    with_nats(stack.nats_url, WORKERS, publish)


def _stream() -> str:
    return declared_parameters()["EventStream"]


async def _ignore(_error: Exception) -> None:
    """Do nothing: the failed connection raises its error."""


def with_nats(url: str, user: str, action: Callable[[Client], Awaitable[None]]) -> None:
    """Do something with a connection of a user; CommandError if NATS does not respond."""

    async def run() -> None:
        try:
            client = await nats.connect(
                url,
                connect_timeout=2,
                max_reconnect_attempts=1,  # also of the first connection
                reconnect_time_wait=0.1,
                inbox_prefix=inbox_prefix(user),
                error_cb=_ignore,
            )
        except (nats.errors.Error, OSError) as error:
            raise CommandError("NATS does not respond.", hint="Start it with `make up`.") from error
        try:
            await action(client)
        except nats.errors.Error as error:
            raise CommandError(
                f"NATS refused: {error}", hint="Repair the other faults with `make up` first."
            ) from error
        finally:
            await client.close()

    asyncio.run(run())
