"""A test's own event stream with its bridge and recorder, for tests of dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.events.v1 import EntitlementEvent
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.pull_consumer import PullConsumer
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings, ensure_topology
from grantwire.runtime.bridge import BridgeRuntime
from grantwire.runtime.recorder import RecorderRuntime
from grantwire.runtime.redrive import RedriveRuntime
from grantwire.settings import load
from grantwire.workers.budget import Budget
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.jetstream.message import Message


def budget(seconds: float = 10.0) -> Budget:
    """Work until there is nothing to do."""
    return Budget(time.monotonic() + seconds, until_idle=True)


def event_bytes(event_id: uuid.UUID, user_id: str = "u_123", version: int = 1) -> bytes:
    """A message that the bridge takes."""
    occurred_at = Timestamp()
    occurred_at.FromDatetime(datetime.now(UTC))
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


def event_headers(event_id: uuid.UUID, **more: str) -> dict[str, str]:
    """The headers that the relay sends."""
    return {
        "Nats-Msg-Id": str(event_id),
        "event_id": str(event_id),
        "event_type": "EntitlementGranted",
        "occurred_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    } | more


class Scene:
    """One event stream, and the workers that deal with it, each with connections of its own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.topology = load(TopologySettings, environ)
        self.stream = self.topology.events.stream
        self.runner = asyncio.Runner()
        self.nats = NatsConnection(load(NatsSettings, environ))
        self.publisher = Publisher(self.nats)
        self.recorder = RecorderRuntime.build(environ)
        self.redriver = RedriveRuntime.build(environ)
        self.bridge = BridgeRuntime.build(environ)
        self.runner.run(self._connect())

    async def _connect(self) -> None:
        await self.nats.connect()
        await ensure_topology(self.nats, self.topology)

    def __enter__(self) -> Self:
        """All is ready."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of everything."""
        self.recorder.close()
        self.redriver.close()
        self.bridge.close()
        self.runner.run(self.nats.close())
        self.runner.close()

    def publish(self, payload: bytes, headers: Mapping[str, str]) -> int:
        """Put a message into the stream; its sequence."""
        ack = self.runner.run(self.publisher.publish(self.topology.events.subject, payload, headers))
        assert not ack.duplicate
        return ack.sequence

    def publish_event(self) -> tuple[uuid.UUID, int]:
        """Put a good event into the stream."""
        event_id = uuid.uuid4()
        return event_id, self.publish(event_bytes(event_id), event_headers(event_id))

    def advise(self, body: bytes, kind: str = "MSG_TERMINATED") -> None:
        """Publish an advisory as the server would."""
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{self.stream}.bridge"
        self.runner.run(self.publisher.publish(subject, body, {}))

    def terminate(self, reason: str) -> int:
        """As a consumer, refuse the next message for ever; its sequence."""

        async def refuse() -> int:
            message = await self._next()
            await message.term(reason)
            await self.nats.flush()
            return message.stream_sequence

        return self.runner.run(refuse())

    async def _next(self) -> Message:
        consumer = PullConsumer(self.nats, self.stream, "bridge")
        await consumer.open()
        (message,) = await consumer.pull(1, 5)
        return message

    def await_advisories(self, count: int) -> None:
        """Return when the advisories stream has so many: the server sends them a moment later."""
        self._until(lambda: self.stream_state(self.topology.advisories.stream) >= count)

    def await_all_acked(self) -> None:
        """Return when the recorder's acknowledgements have arrived."""
        advisories = self.topology.advisories

        async def pending() -> int:
            infos = await self.nats.jetstream.consumers_info(advisories.stream)
            return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos)

        self._until(lambda: self.runner.run(pending()) == 0)

    def stream_state(self, stream: str | None = None) -> int:
        """The last sequence of a stream."""
        info = self.runner.run(self.nats.jetstream.stream_info(stream or self.stream))
        return info.state.last_seq

    def message(self, sequence: int) -> Any:
        """A message of the event stream."""
        return self.runner.run(self.nats.jetstream.get_msg(self.stream, sequence))

    def record(self) -> dict[str, Any]:
        """Let the recorder work until it is idle."""
        return self.recorder.run(budget())

    def consume(self) -> dict[str, int]:
        """Let the real bridge work until it is idle."""
        return self.bridge.run(budget())

    def execute(self, *, now: datetime | None = None, **event: Any) -> dict[str, Any]:
        """An operator's order, as the function takes it."""
        order = DeadLetterCommand.parse({"actor": "ann", "reason": "repaired"} | event)
        return self.redriver.dead_letters.execute(order, now=now).as_dict()

    def _until(self, holds: Any) -> None:
        assert wait_until(holds, 10, every=0.01), "it did not come"

    def die_of_it(self, advisories: int) -> None:
        """Let the bridge, whose decoder kills it, work until JetStream has given up so many messages."""
        deadline = time.monotonic() + 20
        while self.stream_state(self.topology.advisories.stream) < advisories:
            assert time.monotonic() < deadline, "JetStream did not give up"
            with contextlib.suppress(MemoryError):
                self.consume()
