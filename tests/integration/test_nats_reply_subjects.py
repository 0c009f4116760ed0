"""G10: no reply subject of a user reaches JetStream, an event, an advisory or a message of another user.

NATS checks the subject that a user publishes to, but not its reply subject. JetStream responds there with the rights of
the server, and some responses are valid requests: an empty one deletes a stream. Each user is therefore in an account
of its own, and imports what it may use from the account of the streams. So a response stays in the account of its user.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings, parse_secret
from grantwire.jetstream.topology import TopologySettings, ensure_topology
from grantwire.settings import load
from infra.local.servers.nats_users import FAULTS, TOPOLOGY, WORKERS, inbox_prefix, list_users
from tests.support.dead_letters import event_bytes
from tests.support.module_database import database_url
from tests.support.nats_deployment import (
    API,
    NAMES,
    SILENCE_SECONDS,
    TOPOLOGY_ENVIRON,
    deployment,
    open_session,
    server,
)
from tests.support.nats_users import ADMIN, READER, NatsWithUsers
from tests.support.plaintext import PLAINTEXT
from tests.support.secured_nats import SignedNats
from tests.support.servers import STATE, newest_postgres
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tests.support.nats_deployment import Logins, Session

__all__ = ["database_url", "deployment", "server"]

PUBLISHED = 20
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
PULL = json.dumps({"batch": 2, "no_wait": True}).encode()
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


async def _publish_events(admin: Client) -> None:
    for _ in range(PUBLISHED):
        await admin.jetstream().publish(NAMES.subject, event_bytes(uuid.uuid4()))


async def _subjects_of(session: Session, user: str) -> list[str]:
    """Return every subject that a user may publish to; for acknowledgements, that of a message it has received."""
    allowed = next(item.publish for item in list_users(NAMES) if item.name == user)
    subjects = [subject for subject in allowed if not subject.endswith(">")]
    for subject in set(allowed) - set(subjects):
        stream, consumer = subject.split(".")[2:4]
        if stream == NAMES.stream:
            inbox = await session.client.subscribe(session.client.new_inbox())
            await session.client.publish(f"{API}.CONSUMER.MSG.NEXT.{stream}.{consumer}", PULL, inbox.subject)
            subjects += [(await inbox.next_msg(timeout=WAIT_SECONDS)).reply for _ in range(2)]
    return subjects


async def _attack(session: Session, user: str) -> None:
    """Send every request that the user may send, with every foreign subject as the place for the response."""
    for subject, target, body in itertools.product(await _subjects_of(session, user), TARGETS, BODIES):
        await session.client.publish(subject, body, target)
        await session.client.publish(subject, body, headers={TRACE: target})
    await session.client.flush()
    await asyncio.sleep(SILENCE_SECONDS)


async def _observe(server: Logins, user: str) -> tuple[State, State, list[str]]:
    """Return the state before and after an attack, and the subjects that a response has reached.

    What the user may publish to itself is not observed. A target that is subscribed to gets every response.
    """
    reached: set[str] = set()

    async def record(message: Msg) -> None:
        reached.add(message.subject)

    allowed = {subject.removesuffix(">") for item in list_users(NAMES) if item.name == user for subject in item.publish}
    async with open_session(server, ADMIN) as admin, open_session(server, user) as session:
        await _publish_events(admin.client)
        for target in (target for target in TARGETS if not target.startswith(tuple(allowed))):
            await admin.client.subscribe(target, cb=record)
        await admin.client.flush()
        before = await _read_state(admin.client)
        await _attack(session, user)
        await admin.client.flush()
        return before, await _read_state(admin.client), sorted(reached)


@newest_postgres
@pytest.mark.parametrize("user", USERS)
def test_response_reaches_no_foreign_subject(deployment: dict[str, str], server: NatsWithUsers, user: str) -> None:  # noqa: ARG001
    """G10: with every allowed request, acknowledgement and trace header."""
    before, after, reached = asyncio.run(_observe(server, user))
    assert (reached, after) == ([], before)


@newest_postgres
def test_same_attack_works_in_the_account_of_the_streams(deployment: dict[str, str], server: NatsWithUsers) -> None:  # noqa: ARG001
    """G10: so the account is what stops it. If a later NATS checks reply subjects, this test fails."""

    async def attack() -> list[str]:
        streams = [NAMES.stream]
        async with open_session(server, ADMIN) as session:
            jetstream = session.client.jetstream()
            await _publish_events(session.client)
            subscription = await jetstream.pull_subscribe_bind(READER, NAMES.stream)
            (message,) = await subscription.fetch(1, timeout=WAIT_SECONDS)
            await session.client.publish(message.reply, b"+ACK", f"{API}.STREAM.DELETE.{NAMES.stream}")
            for _ in range(int(WAIT_SECONDS / 0.01)):
                streams = [str(info.config.name) for info in await jetstream.streams_info()]
                if NAMES.stream not in streams:
                    break
                await asyncio.sleep(0.01)
            return streams

    assert asyncio.run(attack()) == [NAMES.advisory_stream]


@newest_postgres
def test_topology_user_owns_the_streams(deployment: dict[str, str], server: NatsWithUsers) -> None:  # noqa: ARG001
    """G10: as SECURITY.md says, no account can stop it: a definition with a limit drops events."""

    async def limit() -> int:
        async with open_session(server, ADMIN) as admin, open_session(server, TOPOLOGY) as session:
            await _publish_events(admin.client)
            config = {"name": NAMES.stream, "subjects": [NAMES.subject], "max_msgs": 1}
            await session.request(f"{API}.STREAM.UPDATE.{NAMES.stream}", config)
            return (await admin.client.jetstream().stream_info(NAMES.stream)).state.messages

    assert asyncio.run(limit()) == 1


@pytest.fixture(scope="module")
def signed_server() -> Iterator[SignedNats]:
    """NATS with the accounts of a deployment that an operator of NATS has signed, and its streams and consumers."""
    server = SignedNats(STATE / "nats-signed", NAMES)
    server.start()
    asyncio.run(_create_streams(server))
    yield server
    server.destroy()


@contextlib.asynccontextmanager
async def _connect_with_credentials(server: SignedNats, user: str) -> AsyncIterator[NatsConnection]:
    """Connect as a function whose secret has a credentials file."""
    endpoint = parse_secret(json.dumps({"url": server.url, "credentials": server.signed.credentials(user)}))
    settings = load(NatsSettings, {**PLAINTEXT, "NATS_URL": server.url, "NATS_INBOX_PREFIX": inbox_prefix(user)})
    connection = NatsConnection(replace(settings, endpoint=endpoint))
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.close()


async def _create_streams(server: SignedNats) -> None:
    async with _connect_with_credentials(server, TOPOLOGY) as connection:
        await ensure_topology(connection, load(TopologySettings, TOPOLOGY_ENVIRON), (READER,))


@pytest.mark.parametrize("user", USERS)
def test_signed_accounts_confine_their_users_too(signed_server: SignedNats, user: str) -> None:
    """G10: the same attack on the same accounts, signed by an operator of NATS; the users have credentials files."""
    before, after, reached = asyncio.run(_observe(signed_server, user))
    assert (reached, after) == ([], before)


def test_signed_accounts_are_sufficient(signed_server: SignedNats) -> None:
    """G10: the workers publish, and the reader fetches and acknowledges."""

    async def use() -> tuple[bytes, int]:
        async with (
            _connect_with_credentials(signed_server, WORKERS) as workers,
            _connect_with_credentials(signed_server, READER) as reader,
        ):
            sequence = (await workers.jetstream.publish(NAMES.subject, b"event")).seq
            subscription = await reader.jetstream.pull_subscribe_bind(READER, NAMES.stream)
            while True:
                (message,) = await subscription.fetch(1, timeout=WAIT_SECONDS)
                await message.ack_sync(timeout=WAIT_SECONDS)
                if message.metadata.sequence.stream == sequence:
                    break
            info = await reader.jetstream.consumer_info(NAMES.stream, READER)
            return message.data, int(info.num_pending or 0)

    assert asyncio.run(use()) == (b"event", 0)
