"""An event stream with its bridge, recorder and redrive, for tests of dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from google.protobuf.timestamp_pb2 import Timestamp

from grantwire.events.v1 import EntitlementEvent
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.pull_consumer import PullConsumer
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.settings import load
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.record_advisories import RecorderRuntime
from grantwire.workers.budget import Budget
from tests.support.audit import audit_messages
from tests.support.commands import Operations
from tests.support.nats_users import as_admin, configure
from tests.support.waiting import WAIT_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.jetstream.message import Message


def budget(seconds: float = WAIT_SECONDS) -> Budget:
    """Return a budget that ends when the worker is idle."""
    return Budget(time.monotonic() + seconds, until_idle=True)


def event_bytes(
    event_id: uuid.UUID, user_id: str = "u_123", version: int = 1, *, time: datetime | None = None
) -> bytes:
    """Return the bytes of a valid event; `time` is when it occurred, by default now."""
    occurred_at = Timestamp()
    occurred_at.FromDatetime(time or datetime.now(UTC))
    return EntitlementEvent(
        event_id=str(event_id),
        event_type="EntitlementGranted",
        occurred_at=occurred_at,
        user_id=user_id,
        stock_keeping_unit="item1",
        source="purchase",
        source_id="p_1",
        version=version,
    ).SerializeToString()


def event_headers(event_id: uuid.UUID, **overrides: str) -> dict[str, str]:
    """Return the headers that the relay sends."""
    return {
        "Nats-Msg-Id": str(event_id),
        "event_id": str(event_id),
        "event_type": "EntitlementGranted",
        "occurred_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    } | overrides


class Pipeline:
    """One event stream and the workers that use it, each with its own connections."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.topology = load(TopologySettings, environ)
        self.stream = self.topology.events.stream
        self.runner = asyncio.Runner()
        self.nats = NatsConnection(load(NatsSettings, as_admin(environ)))
        self.publisher = Publisher(self.nats)
        self.recorder = RecorderRuntime.build(environ)
        self.operations = Operations(environ)
        self.bridge = BridgeRuntime.build(environ)
        configure(environ)
        self.runner.run(self._connect())

    async def _connect(self) -> None:
        await self.nats.connect()

    def __enter__(self) -> Self:
        """Return the pipeline; the constructor has connected already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self.recorder.close()
        self.operations.close()
        self.bridge.close()
        self.runner.run(self.nats.close())
        self.runner.close()

    def publish(self, payload: bytes, headers: Mapping[str, str], *, genuine: bool = True) -> int:
        """Publish a message and return its sequence; if it is an event, write its audit row first."""
        if genuine:
            with psycopg.connect(self.environ["DATABASE_URL"]) as connection:
                audit_messages(connection, [payload])
        ack = self.runner.run(self.publisher.publish(self.topology.events.subject, payload, headers))
        assert not ack.duplicate
        return ack.sequence

    def publish_event(self) -> tuple[uuid.UUID, int]:
        """Publish a valid event and return its id and its sequence."""
        event_id = uuid.uuid4()
        return event_id, self.publish(event_bytes(event_id), event_headers(event_id))

    def publish_advisory(self, body: bytes, kind: str = "MSG_TERMINATED", durable: str = "bridge") -> None:
        """Publish an advisory as the server would."""
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{self.stream}.{durable}"
        self.runner.run(self.publisher.publish(subject, body, {}))

    def terminate_next(self, reason: str) -> int:
        """Terminate the next message, as a consumer would, and return its sequence."""

        async def terminate() -> int:
            message = await self._next_message()
            await message.term(reason)
            await self.nats.flush()
            return message.stream_sequence

        return self.runner.run(terminate())

    async def _next_message(self) -> Message:
        consumer = PullConsumer(self.nats, self.stream, self.topology.consumer.durable)
        await consumer.open()
        (message,) = await consumer.pull(1, WAIT_SECONDS)
        return message

    def wait_for_advisories(self, count: int) -> None:
        """Wait until the stream of advisories has `count` messages: the server sends them with a delay."""
        until("the advisories arrive", lambda: self.last_sequence(self.topology.advisories.stream) >= count)

    def wait_until_acknowledged(self) -> None:
        """Wait until JetStream has received the recorder's acknowledgements."""
        advisories = self.topology.advisories

        async def pending() -> int:
            infos = await self.nats.jetstream.consumers_info(advisories.stream)
            return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos)

        until("all is acknowledged", lambda: self.runner.run(pending()) == 0)

    def last_sequence(self, stream: str | None = None) -> int:
        """Return the last sequence of a stream, by default of the event stream."""
        info = self.runner.run(self.nats.jetstream.stream_info(stream or self.stream))
        return info.state.last_seq

    def get_message(self, sequence: int) -> Any:
        """Return a message of the event stream."""
        return self.runner.run(self.nats.jetstream.get_msg(self.stream, sequence))

    def run_recorder(self) -> dict[str, Any]:
        """Run the recorder until it is idle."""
        return self.recorder.run(budget())

    def run_bridge(self) -> dict[str, int]:
        """Run the bridge until it is idle."""
        return self.bridge.run(budget())

    def execute(self, action: str, *, now: datetime | None = None, **body: Any) -> dict[str, Any]:
        """Execute an operator's command on dead letters, as its worker does."""
        return self.operations.execute(f"dead_letters.{action}", now=now, **body)

    def run_bridge_until_max_deliver(self, advisories: int) -> None:
        """Run a bridge whose decoder raises MemoryError, until JetStream has sent `advisories` advisories."""

        def has_advisories() -> bool:
            with contextlib.suppress(MemoryError):
                self.run_bridge()
            return self.last_sequence(self.topology.advisories.stream) >= advisories

        until("JetStream reaches max-deliver", has_advisories)
