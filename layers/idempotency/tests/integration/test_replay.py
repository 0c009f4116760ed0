"""C10: a replay of an event stream from its start duplicates no effect."""

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
from tests.support.nats_users import as_admin
from tests.support.servers import newest_postgres
from tests.support.workers.bridge_stream import Stream, event
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layers.idempotency.tests.integration.harness import Harness, PostgresHarness, RedisHarness

USERS = 4
VERSIONS = 6


@pytest.fixture
def environ(nats_url: str) -> dict[str, str]:
    """Return settings with separate streams and no database."""
    environ = worker_environ("", nats_url)
    del environ["DATABASE_URL"]
    return environ


@pytest.fixture
def published_events(environ: dict[str, str]) -> Iterator[list[EntitlementEvent]]:
    """Publish events of several users in order; some of them twice, the second time late."""
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
    """Read the whole stream with a new consumer."""
    return asyncio.run(_read(environ))


async def _read(environ: dict[str, str]) -> list[Message]:
    broker = NatsConnection(load(NatsSettings, as_admin(environ)))
    await broker.connect()
    try:
        stream = environ["ENTITLEMENT_NATS_STREAM"]
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
        subscription = await broker.jetstream.pull_subscribe(
            environ["ENTITLEMENT_NATS_SUBJECT"], stream=stream, config=config
        )
        count = (await broker.jetstream.stream_info(stream)).state.messages
        messages: list[Message] = []
        while len(messages) < count:
            batch = await subscription.fetch(count - len(messages), timeout=60)
            messages += [_to_message(received.data) for received in batch]
        return messages
    finally:
        await broker.close()


def _to_message(data: bytes) -> Message:
    event = EntitlementEvent.FromString(data)
    body = {"user_id": event.user_id, "version": event.version}
    return Message(event.event_id, event.event_type, json.dumps(body))


class Suite:
    """A replay with any store that processes share; each subclass provides a harness."""

    @staticmethod
    def _consumer(harness: Harness, effect: Callable[[Message], Any], **options: Any) -> IdempotentConsumer:
        (store,) = harness.stores(1)
        return IdempotentConsumer(store, effect, NoMetrics(), name="replay", **options)

    def test_replay_does_not_repeat_effects(
        self, harness: Harness, environ: dict[str, str], published_events: list[EntitlementEvent]
    ) -> None:
        """C10: the event id is the key; the first reader stops half-way, and two others start from the beginning."""
        effects: list[str] = []
        consumer = self._consumer(harness, lambda message: effects.append(message.id))
        messages = read(environ)
        assert len(messages) == len(published_events) + 5
        assert consumer.process_batch(messages[: len(messages) // 2]) == []
        assert 0 < len(effects) < len(published_events)
        for _ in range(2):
            assert consumer.process_batch(read(environ)) == []
            assert sorted(effects) == sorted(event.event_id for event in published_events)

    def test_replay_never_restores_older_version(
        self, harness: Harness, environ: dict[str, str], published_events: list[EntitlementEvent]
    ) -> None:
        """C3, C10: each change is applied once and in order, in any order of redelivery."""
        applied: dict[str, list[int]] = {f"u{user}": [] for user in range(USERS)}
        consumer = self._consumer(
            harness,
            lambda message: applied[message.payload["user_id"]].append(message.payload["version"]),
            identify=by_version(entity_key("user", "user_id")),
        )
        messages = read(environ)
        assert consumer.process_batch(messages) == []
        in_order = {f"u{user}": list(range(1, VERSIONS + 1)) for user in range(USERS)}
        assert applied == in_order
        assert consumer.process_batch(read(environ)) == []
        assert consumer.process_batch(random.sample(messages, len(messages))) == []
        assert applied == in_order
        assert len(published_events) == USERS * VERSIONS


class TestRedisStore(Suite):
    """Keys in Redis."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """Provide the stores."""
        return redis_harness


@newest_postgres
class TestPostgresStore(Suite):
    """Keys in PostgreSQL."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """Provide the stores."""
        return postgres_harness
