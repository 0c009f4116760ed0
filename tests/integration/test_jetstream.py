"""N2, N3: connection and publisher on a real NATS server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from nats.errors import NoServersError

from grantwire.errors import AmbiguousError, ConfigError, RejectedError, RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import PubAck, Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.settings import load
from tests.support.nats_users import ADMIN
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from infra.local.servers.nats import NatsServer


async def _connect(environ: dict[str, str]) -> NatsConnection:
    nats = NatsConnection(load(NatsSettings, environ))
    await nats.connect()
    return nats


@newest_postgres
def test_publish_is_acknowledged_and_deduplicated(environ: dict[str, str]) -> None:
    """O3: each acknowledgement is matched to its message; a second message with the same id is a duplicate."""

    async def scenario() -> None:
        nats = await _connect(environ)
        subject, stream = environ["ENTITLEMENT_NATS_SUBJECT"], environ["ENTITLEMENT_NATS_STREAM"]
        publisher = Publisher(nats)
        acks = await asyncio.gather(
            *(publisher.publish(subject, b"x", {"Nats-Msg-Id": f"id-{number}"}) for number in range(200))
        )
        assert sorted(ack.sequence for ack in acks) == list(range(1, 201))
        repeated = await publisher.publish(subject, b"x", {"Nats-Msg-Id": "id-7"})
        assert repeated == PubAck(stream, acks[7].sequence, duplicate=True)
        await nats.close()

    asyncio.run(scenario())


def test_each_publish_failure_has_its_own_error(nats_server: NatsServer) -> None:
    """No stream: RetryableError. Too large: RejectedError. No response: AmbiguousError. No server: RetryableError."""

    async def scenario() -> None:
        nats = NatsConnection(
            load(
                NatsSettings,
                {**PLAINTEXT, "NATS_URL": nats_server.url_for(ADMIN), "NATS_PUBLISH_TIMEOUT": "300ms"},
            )
        )
        await nats.connect()
        publisher = Publisher(nats)
        with pytest.raises(RetryableError, match="no stream listens"):
            await publisher.publish("no-stream", b"x", {})
        with pytest.raises(RejectedError, match="exceeds max_payload"):
            await publisher.publish("no-stream", b"x" * 2_000_000, {})
        await nats.client.subscribe("silent", cb=_ignore)
        with pytest.raises(AmbiguousError, match="no acknowledgement"):
            await publisher.publish("silent", b"x", {})
        nats_server.kill()
        with pytest.raises(RetryableError):
            await publisher.publish("silent", b"x", {})
        with pytest.raises(RetryableError, match="unreachable"):
            await nats.connect()
        nats_server.start()
        await nats.connect()
        assert nats.is_connected
        await nats.close()

    asyncio.run(scenario())


async def _ignore(_message: object) -> None:
    pass


def test_connecting_ends_after_two_attempts() -> None:
    """N3: not only by its timeout, whose cancellation nats-py may lose; it would try for two more minutes."""
    environ = {**PLAINTEXT, "NATS_URL": "nats://127.0.0.1:9", "NATS_CONNECT_TIMEOUT": "30s"}
    with pytest.raises(RetryableError) as raised:
        asyncio.run(_connect(environ))
    assert isinstance(raised.value.__cause__, NoServersError)


@newest_postgres
def test_connects_to_any_of_several_servers(environ: dict[str, str]) -> None:
    """NATS_URL may list the servers of a cluster, of which some may be down."""

    async def scenario() -> None:
        nats = await _connect(environ | {"NATS_URL": f"nats://127.0.0.1:1, {environ['NATS_URL']}"})
        assert nats.is_connected
        await nats.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["127.0.0.1:4222", "http://h:1", "nats://", "nats://a:1,,nats://b:2"])
def test_invalid_url_is_a_config_error(url: str) -> None:
    """Otherwise a worker would retry it forever, like a server that is down."""
    with pytest.raises(ConfigError, match="NATS_URL must be nats:// or tls:// URLs"):
        load(NatsSettings, {**PLAINTEXT, "NATS_URL": url})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ENTITLEMENT_NATS_MAX_AGE": "30d"}, "ENTITLEMENT_NATS_MAX_AGE must be shorter"),
        ({"ENTITLEMENT_NATS_DUPLICATE_WINDOW": "2h", "ENTITLEMENT_NATS_MAX_AGE": "1h"}, "must not exceed"),
        ({"NOTIFICATION_NATS_STREAM": "OTHER"}, "must be the same as ENTITLEMENT_NATS_STREAM"),
        ({"ENTITLEMENT_NATS_SUBJECT": ""}, "ENTITLEMENT_NATS_SUBJECT is missing"),
    ],
)
def test_contradictory_topology_is_a_config_error(change: dict[str, str], problem: str) -> None:
    """N2: the init phase fails before streams are created."""
    valid = {
        "ENTITLEMENT_NATS_SUBJECT": "s",
        "ENTITLEMENT_NATS_STREAM": "S",
        "NOTIFICATION_NATS_STREAM": "S",
        "NOTIFICATION_NATS_DURABLE": "d",
    }
    with pytest.raises(ConfigError, match=problem):
        load(TopologySettings, valid | change)
