"""G10: no reply subject of a user reaches JetStream, an event, an advisory or a message of another user.

NATS checks the subject that a user publishes to, but not its reply subject. JetStream responds there with the rights of
the server, and some responses are valid requests: an empty one deletes a stream. Each user is therefore in an account
of its own, and imports what it may use from the account of the streams. So a response stays in the account of its user.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings, parse_secret
from grantwire.jetstream.topology import TopologySettings, ensure_topology
from grantwire.settings import load
from infra.local.servers.nats_users import TOPOLOGY, WORKERS, inbox_prefix
from tests.support.module_database import database_url
from tests.support.nats_deployment import API, NAMES, TOPOLOGY_ENVIRON, deployment, open_session, server
from tests.support.nats_users import ADMIN, READER, NatsWithUsers
from tests.support.plaintext import PLAINTEXT
from tests.support.reply_attack import USERS, observe_attack, publish_events
from tests.support.secured_nats import SignedNats
from tests.support.servers import STATE, newest_postgres
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["database_url", "deployment", "server"]


@newest_postgres
@pytest.mark.parametrize("user", USERS)
def test_response_reaches_no_foreign_subject(deployment: dict[str, str], server: NatsWithUsers, user: str) -> None:  # noqa: ARG001
    """G10: with every allowed request, acknowledgement and trace header."""
    before, after, reached = asyncio.run(observe_attack(server, user))
    assert (reached, after) == ([], before)


@newest_postgres
def test_same_attack_works_in_the_account_of_the_streams(deployment: dict[str, str], server: NatsWithUsers) -> None:  # noqa: ARG001
    """G10: so the account is what stops it. If a later NATS checks reply subjects, this test fails."""

    async def attack() -> list[str]:
        streams = [NAMES.stream]
        async with open_session(server, ADMIN) as session:
            jetstream = session.client.jetstream()
            await publish_events(session.client)
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
            await publish_events(admin.client)
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
    before, after, reached = asyncio.run(observe_attack(signed_server, user))
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
