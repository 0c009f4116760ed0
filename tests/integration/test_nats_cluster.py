"""G10: the accounts of NATS users on a cluster of three servers, where requests and responses pass several servers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from grantwire.errors import RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings, ensure_topology
from grantwire.settings import load
from infra.local.servers.nats_users import TOPOLOGY, WORKERS, inbox_prefix
from tests.support.nats_cluster import SERVERS, NatsCluster
from tests.support.nats_deployment import NAMES, TOPOLOGY_ENVIRON, open_session
from tests.support.nats_users import ADMIN, READER, NatsWithUsers
from tests.support.plaintext import PLAINTEXT
from tests.support.reply_attack import USERS, observe_attack
from tests.support.servers import STATE
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.nats_deployment import Session


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """Three servers with the streams and consumers of a deployment, which have three replicas."""
    with NatsCluster(STATE / "nats-cluster", NAMES) as cluster:
        asyncio.run(_create_streams(cluster.nodes[0]))
        yield cluster


async def _create_streams(server: NatsWithUsers) -> None:
    environ = {
        **PLAINTEXT,
        **TOPOLOGY_ENVIRON,
        "ENTITLEMENT_NATS_REPLICAS": str(SERVERS),
        "NATS_URL": server.url_for(TOPOLOGY),
        "NATS_INBOX_PREFIX": inbox_prefix(TOPOLOGY),
    }
    connection = NatsConnection(load(NatsSettings, environ))
    await connection.connect()
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            await ensure_topology(connection, load(TopologySettings, environ), (READER,))
            break
        except RetryableError:  # the servers have not chosen their leader yet
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    await connection.close()


@pytest.mark.parametrize("node", range(SERVERS))
@pytest.mark.parametrize("user", USERS)
def test_response_reaches_no_foreign_subject(cluster: NatsCluster, user: str, node: int) -> None:
    """With every allowed request, acknowledgement and trace header, on the leader of the stream and on the others."""
    before, after, reached = asyncio.run(observe_attack(cluster.nodes[node], user))
    assert (reached, after) == ([], before)


@pytest.mark.parametrize("node", range(SERVERS))
def test_reader_and_workers_use_any_server(cluster: NatsCluster, node: int) -> None:
    """The workers publish on one server; the reader fetches messages with one request, and acknowledges them."""

    async def use() -> tuple[int, list[str]]:
        writer = cluster.nodes[node - 1]
        async with (
            open_session(cluster.nodes[node], ADMIN) as admin,
            open_session(writer, WORKERS) as workers,
            open_session(cluster.nodes[node], READER) as reader,
        ):
            await admin.client.jetstream().purge_stream(NAMES.stream)
            for _ in range(3):
                await workers.client.jetstream().publish(NAMES.subject, b"event")
            subscription = await reader.client.jetstream().pull_subscribe_bind(READER, NAMES.stream)
            for message in await subscription.fetch(3, timeout=WAIT_SECONDS):
                await message.ack_sync(timeout=WAIT_SECONDS)
            unfinished = await _count_unfinished(reader)
            for _ in range(100):  # until the leader has counted the acknowledgements on the other servers
                if unfinished:
                    await asyncio.sleep(0.1)
                    unfinished = await _count_unfinished(reader)
            return unfinished, workers.denied + reader.denied

    assert asyncio.run(use()) == (0, [])


async def _count_unfinished(reader: Session) -> int:
    """Return how many messages the reader has not received, or not acknowledged."""
    info = await reader.client.jetstream().consumer_info(NAMES.stream, READER)
    return int(info.num_ack_pending or 0) + int(info.num_pending or 0)
