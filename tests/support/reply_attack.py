"""Attack of a NATS user with every reply subject, and what the attack would change (G10).

NATS checks the subject that a user publishes to, but not its reply subject. JetStream responds there with the rights of
the server, and some responses are valid requests: an empty one deletes a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from infra.local.servers.nats_users import FAULTS, TOPOLOGY, WORKERS, inbox_prefix, list_users
from tests.support.dead_letters import event_bytes
from tests.support.nats_deployment import API, NAMES, SILENCE_SECONDS, open_session
from tests.support.nats_users import ADMIN, READER
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tests.support.nats_deployment import Logins, Session

PUBLISHED = 20
PULLED = 2
USERS = (WORKERS, TOPOLOGY, READER, FAULTS)
# Everything that a response must not reach: requests, events, advisories, acknowledgements, the inbox of another user.
TARGETS = (
    f"{API}.STREAM.PURGE.{NAMES.stream}",
    f"{API}.STREAM.DELETE.{NAMES.stream}",
    f"{API}.STREAM.DELETE.{NAMES.advisory_stream}",
    f"{API}.CONSUMER.DELETE.{NAMES.stream}.{NAMES.durable}",
    f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{NAMES.stream}.{NAMES.durable}",
    f"$JS.ACK.{NAMES.stream}.{NAMES.durable}.1.1.1.1.0",
    *(f"{inbox_prefix(user)}.response" for user in USERS),
    NAMES.subject,
)
PULL = json.dumps({"batch": PULLED, "no_wait": True}).encode()
# A request without content, one that gets a message or nothing, and acknowledgements that ask for a response.
BODIES = (b"", PULL, b"+ACK", b"+NXT")
TRACE = "Nats-Trace-Dest"  # the server also publishes to the subject in this header


class State(NamedTuple):
    """What an attack would change."""

    streams: list[tuple[str, object, int]]
    consumers: list[str]
    advisories: int


async def _read_state(admin: Client) -> State:
    jetstream = admin.jetstream()
    infos = await jetstream.streams_info()
    consumers = await jetstream.consumers_info(NAMES.stream)
    advisories = await jetstream.stream_info(NAMES.advisory_stream)
    return State(
        sorted((str(info.config.name), info.created, info.state.first_seq) for info in infos),
        sorted(consumer.name for consumer in consumers),
        advisories.state.messages,
    )


async def publish_events(admin: Client) -> None:
    """Publish as many events as an attack needs."""
    for _ in range(PUBLISHED):
        await admin.jetstream().publish(NAMES.subject, event_bytes(uuid.uuid4()))


async def _subjects_of(session: Session, user: str) -> list[str]:
    """Return every subject that a user may publish to; for acknowledgements, that of a message it has received."""
    allowed = next(item.publish for item in list_users(NAMES) if item.name == user)
    subjects = [subject for subject in allowed if not subject.endswith(">")]
    for subject in set(allowed) - set(subjects):
        stream, consumer = subject.split(".")[2:4]
        if stream == NAMES.stream:
            subjects += await _pull_two(session.client, f"{API}.CONSUMER.MSG.NEXT.{stream}.{consumer}")
    return subjects


async def _pull_two(client: Client, request: str) -> list[str]:
    """Return the subjects that acknowledge two messages. A request is lost while the consumer gets another leader."""
    inbox = await client.subscribe(client.new_inbox())
    subjects: list[str] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(subjects) < PULLED:
        assert time.monotonic() < deadline, f"{request} returned {len(subjects)} messages"
        await client.publish(request, PULL, inbox.subject)
        with contextlib.suppress(TimeoutError):
            while True:
                message = await inbox.next_msg(timeout=1)
                if not message.reply:  # the response says that there are no more messages
                    break
                subjects.append(message.reply)
    return subjects


async def _attack(session: Session, user: str) -> None:
    """Send every request that the user may send, with every foreign subject as the place for the response."""
    for subject, target, body in itertools.product(await _subjects_of(session, user), TARGETS, BODIES):
        await session.client.publish(subject, body, target)
        await session.client.publish(subject, body, headers={TRACE: target})
    await session.client.flush()
    await asyncio.sleep(SILENCE_SECONDS)


async def observe_attack(server: Logins, user: str) -> tuple[State, State, list[str]]:
    """Return the state before and after an attack, and the subjects that a response has reached.

    What the user may publish to itself is not observed. A target that is subscribed to gets every response.
    """
    reached: set[str] = set()

    async def record(message: Msg) -> None:
        reached.add(message.subject)

    allowed = {subject.removesuffix(">") for item in list_users(NAMES) if item.name == user for subject in item.publish}
    async with open_session(server, ADMIN) as admin, open_session(server, user) as session:
        await publish_events(admin.client)
        for target in (target for target in TARGETS if not target.startswith(tuple(allowed))):
            await admin.client.subscribe(target, cb=record)
        await admin.client.flush()
        before = await _read_state(admin.client)
        await _attack(session, user)
        await admin.client.flush()
        return before, await _read_state(admin.client), sorted(reached)
