"""An event stream for tests: publishes as the relay would, and reads JetStream's state."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.settings import load
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from tests.support.audit import audit_messages
from tests.support.nats_users import as_admin, configure
from tests.support.waiting import until_idle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from nats.js.api import ConsumerInfo


def event(**fields: Any) -> EntitlementEvent:
    """Return an event; `fields` replace the defaults."""
    values: dict[str, Any] = {
        "event_id": str(uuid7()),
        "event_type": "EntitlementGranted",
        "occurred_at": datetime(2026, 1, 8, 7, 10, tzinfo=UTC),
        "user_id": "u_123",
        "stock_keeping_unit": "item1",
        "source": "purchase",
        "source_id": "p_456",
        "version": 1,
    }
    return EntitlementEvent(**values | fields)


def _to_bytes(item: EntitlementEvent | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.SerializeToString()


def drain(environ: Mapping[str, str]) -> dict[str, int]:
    """Run a bridge until it is idle, and return its counts."""
    runtime = BridgeRuntime.build(environ)
    try:
        return runtime.run(until_idle())
    finally:
        runtime.close()


class Stream:
    """The event stream of one environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.settings = load(TopologySettings, environ)
        self._environ = environ
        self._nats = NatsConnection(load(NatsSettings, as_admin(environ)))
        self._publisher = Publisher(self._nats)
        self._runner = asyncio.Runner()
        self._database_url = environ.get("DATABASE_URL")
        self._audited: set[bytes] = set()

    def __enter__(self) -> Self:
        """Configure the streams and connect."""
        configure(self._environ)
        self._runner.run(self._nats.connect())
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._runner.run(self._nats.close())
        self._runner.close()

    def audit(self, *events: EntitlementEvent | bytes) -> None:
        """Write the audit rows of events, which makes them genuine; each event once."""
        new = [data for data in map(_to_bytes, events) if data not in self._audited]
        if new and self._database_url:
            with psycopg.connect(self._database_url) as connection:
                audit_messages(connection, new)
        self._audited.update(new)

    def publish(self, *events: EntitlementEvent | bytes, **headers: str) -> None:
        """Publish messages, each with its own Nats-Msg-Id, after their audit rows."""
        self.audit(*events)
        self.publish_forged(*events, **headers)

    def publish_forged(self, *events: EntitlementEvent | bytes, **headers: str) -> None:
        """Publish messages as any client of NATS can, without an audit row."""
        payloads = list(map(_to_bytes, events))
        for start in range(0, len(payloads), 500):
            self._runner.run(self._publish(payloads[start : start + 500], headers))

    async def _publish(self, payloads: Iterable[bytes], headers: Mapping[str, str]) -> None:
        subject = self.settings.events.subject
        publishes = (
            self._publisher.publish(subject, data, {"Nats-Msg-Id": str(uuid7()), **headers}) for data in payloads
        )
        await asyncio.gather(*publishes)

    def publish_foreign_advisory(self) -> None:
        """Publish an advisory about another stream to a subject of the advisory stream, as an intruder could."""
        body = {
            "type": "io.nats.jetstream.advisory.v1.terminated",
            "timestamp": datetime.now(UTC).isoformat(),
            "stream": "FOREIGN",
            "consumer": "foreign",
            "stream_seq": 1,
        }
        subject = self.settings.advisory_subject("MSG_TERMINATED")
        self._runner.run(self._publisher.publish(subject, json.dumps(body).encode(), {}))

    def consumer_info(self) -> ConsumerInfo:
        """Return JetStream's state of the bridge's consumer."""
        settings = self.settings.consumer
        info: ConsumerInfo = self._runner.run(self._nats.jetstream.consumer_info(settings.stream, settings.durable))
        return info

    def delivery_count(self) -> int:
        """Return how often JetStream has delivered a message to the bridge, redeliveries included."""
        delivered = self.consumer_info().delivered
        assert delivered is not None
        return delivered.consumer_seq

    def advisories(self) -> list[dict[str, Any]]:
        """Return all advisories in the stream of advisories, in order."""
        return self._runner.run(self._advisories())

    async def _advisories(self) -> list[dict[str, Any]]:
        stream = self.settings.advisories.stream
        last = (await self._nats.jetstream.stream_info(stream)).state.last_seq
        messages = [await self._nats.jetstream.get_msg(stream, number) for number in range(1, last + 1)]
        return [json.loads(message.data or b"") for message in messages]
