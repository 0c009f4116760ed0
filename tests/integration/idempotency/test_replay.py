"""C10: a whole event stream is read again, from its start, and no effect is doubled."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from grantwire.events.v1 import EntitlementEvent
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.settings import load
from grantwire_idempotency import IdempotentConsumer, Message, NoMetrics, by_version, entity_key
from tests.support.workers.bridge_stream import Stream, event
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.idempotency.harness import Harness, PostgresHarness, RedisHarness

USERS = 4
VERSIONS = 6


@pytest.fixture
def environ(nats_url: str) -> dict[str, str]:
    """Streams that nobody else has; no database."""
    environ = worker_environ("", nats_url)
    del environ["DATABASE_URL"]
    return environ


@pytest.fixture
def published(environ: dict[str, str]) -> Iterator[list[EntitlementEvent]]:
    """Events of several users, each in order; some are in the stream twice, the second time late."""
    events = [
        event(user_id=f"u{user}", version=version, event_type="EntitlementGranted")
        for version in range(1, VERSIONS + 1)
        for user in range(USERS)
    ]
    with Stream(environ) as stream:
        stream.publish(*events)
        stream.publish(*random.sample(events, 5))
        yield events


def read(environ: dict[str, str]) -> list[Message]:
    """Everything that the stream has, from the start, by a consumer that has never read before."""
    return asyncio.run(_read(environ))


async def _read(environ: dict[str, str]) -> list[Message]:
    broker = NatsConnection(load(NatsSettings, environ))
    await broker.connect()
    try:
        stream = environ["ENTITLEMENT_NATS_STREAM"]
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
        pulled = await broker.jetstream.pull_subscribe(
            environ["ENTITLEMENT_NATS_SUBJECT"], stream=stream, config=config
        )
        count = (await broker.jetstream.stream_info(stream)).state.messages
        found: list[Message] = []
        while len(found) < count:
            found += [_message(one.data) for one in await pulled.fetch(count - len(found), timeout=10)]
        return found
    finally:
        await broker.close()


def _message(data: bytes) -> Message:
    found = EntitlementEvent.FromString(data)
    body = {"user_id": found.user_id, "version": found.version}
    return Message(found.event_id, found.event_type, json.dumps(body))


class Suite:
    """What a replay does with every store that outlives a process; each subclass has a harness of its own."""

    @staticmethod
    def _consumer(harness: Harness, effect: Callable[[Message], Any], **options: Any) -> IdempotentConsumer:
        (store,) = harness.stores(1)
        return IdempotentConsumer(store, effect, NoMetrics(), name="replay", **options)

    def test_a_stream_that_is_read_twice_has_its_effects_once(
        self, harness: Harness, environ: dict[str, str], published: list[EntitlementEvent]
    ) -> None:
        """C10: by the events' own ids; the first reader stops half-way, the next two begin at the start."""
        effects: list[str] = []
        consumer = self._consumer(harness, lambda one: effects.append(one.id))
        messages = read(environ)
        assert len(messages) == len(published) + 5
        assert consumer.process_batch(messages[: len(messages) // 2]) == []
        assert 0 < len(effects) < len(published)
        for _ in range(2):
            assert consumer.process_batch(read(environ)) == []
            assert sorted(effects) == sorted(one.event_id for one in published)

    def test_a_replay_takes_no_entity_back_to_an_older_version(
        self, harness: Harness, environ: dict[str, str], published: list[EntitlementEvent]
    ) -> None:
        """C3, C10: by version; each change is applied once and in order, in whatever order it comes again."""
        applied: dict[str, list[int]] = {f"u{user}": [] for user in range(USERS)}
        consumer = self._consumer(
            harness,
            lambda one: applied[one.payload["user_id"]].append(one.payload["version"]),
            identify=by_version(entity_key("user", "user_id")),
        )
        messages = read(environ)
        assert consumer.process_batch(messages) == []
        in_order = {f"u{user}": list(range(1, VERSIONS + 1)) for user in range(USERS)}
        assert applied == in_order
        assert consumer.process_batch(read(environ)) == []
        assert consumer.process_batch(random.sample(messages, len(messages))) == []
        assert applied == in_order
        assert len(published) == USERS * VERSIONS


class TestRedisStore(Suite):
    """Keys in Redis."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """On the Valkey of all tests."""
        return redis_harness


class TestPostgresStore(Suite):
    """Keys in PostgreSQL."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """In one database for all of these tests."""
        return postgres_harness
