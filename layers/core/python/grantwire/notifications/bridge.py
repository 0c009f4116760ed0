"""The bridge: records batches of events from JetStream in PostgreSQL, one transaction each (N3 to N6).

A batch is acknowledged after its commit. A database outage makes no message a dead letter, however long it lasts. While
PostgreSQL is unavailable the bridge fetches nothing. If PostgreSQL fails while the bridge holds a batch, the bridge
keeps the batch, extends its ack wait and retries until the budget ends. Then it returns the messages with a delay that
doubles with each delivery. A message on its last delivery is republished at the end of the stream with a new message
id, because JetStream would otherwise stop delivering it.

Only genuine events are recorded: those that the audit has, written in the transaction of the change (G1). Any other
message is terminated, and becomes a dead letter.

A message that PostgreSQL refuses does not hold back the rest of its batch. A message with invalid data is terminated
immediately. One that fails for another reason is returned with a delay, until max-deliver makes it a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from grantwire.errors import GrantwireError, RejectedError, RetryableError
from grantwire.events.decoding import Event, decode, probe_event
from grantwire.events.genuine import NOT_GENUINE, find_genuine
from grantwire.jetstream.message import acknowledge, text_headers
from grantwire.jetstream.topology import verify_topology
from grantwire.notifications.inbox import record_events
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.workers.isolation import Fault, WriteResult, write_isolated
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grantwire.database import Database
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.message import Message
    from grantwire.jetstream.publisher import Publisher
    from grantwire.jetstream.pull_consumer import PullConsumer
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.workers.budget import Budget

# Short, because PostgreSQL is checked before a pull and may become unavailable while the pull waits.
_MAX_PULL_SECONDS = 1.0
_MAX_DELAY_SECONDS = 600.0
# The consumer lag is measured at the beginning and at the end of a run, and this often meanwhile.
_LAG_SECONDS = 15.0


class _EventBatch(NamedTuple):
    """The events of one fetch, and the messages of each; `is_full` if the stream may hold more.

    Both are keyed by the digest of the message, not by the event id: a forged message can have the id of a genuine one.
    """

    events: dict[bytes, Event]
    messages_by_digest: dict[bytes, list[Message]]
    is_full: bool

    @property
    def messages(self) -> list[Message]:
        """All messages of the batch, duplicates of an event included."""
        return [message for messages in self.messages_by_digest.values() for message in messages]


class Bridge(Worker):
    """Worker that records the events of one durable consumer. It belongs to one event loop, like its connection."""

    name = "bridge_events"
    counters: ClassVar[Mapping[str, str | None]] = {
        "recorded": "NotificationsCreated",
        "duplicates": "DuplicateEvents",
        "terminated": "MessagesTerminated",
        "not_genuine": "EventsNotGenuine",
        "returned": "MessagesReturned",
    }

    def __init__(
        self,
        database: Database,
        nats: NatsConnection,
        publisher: Publisher,
        consumer: PullConsumer,
        topology: TopologySettings,
    ) -> None:
        super().__init__()
        self._database = database
        self._nats = nats
        self._publisher = publisher
        self._consumer = consumer
        self._topology = topology
        self._settings = topology.consumer
        # True if PostgreSQL executed the last statement that it was sent.
        self._database_is_up = False
        # The batch being recorded, until it is committed, and the batch that was fetched and decoded meanwhile.
        self._batch: _EventBatch | None = None
        self._prefetched: _EventBatch | None = None
        self._ack_extender: asyncio.Task[None] | None = None
        self._lag_measured_at = -math.inf

    async def begin(self) -> None:
        """Check the connection, because a frozen sandbox loses its socket unnoticed.

        A failure is ignored here: the first fetch connects again and raises.
        """
        self._lag_measured_at = -math.inf
        with contextlib.suppress(RetryableError):
            await self._nats.connect()

    async def step(self, budget: Budget) -> bool:
        """Record one batch and then acknowledge it; return false if no message arrived.

        If PostgreSQL is unavailable, the batch is kept for the next step.
        """
        if not self._consumer.is_open:
            self._batch = self._prefetched = None  # JetStream redelivers the messages of a lost connection
        if self._batch is None:
            self._batch = await self._next_batch(budget)
        if self._batch is None:
            return False
        if self._ack_extender is None:
            self._ack_extender = asyncio.create_task(self._extend_ack_wait())
        if self._batch.events:
            written = await self._record(self._batch)
            await self._acknowledge(self._batch, written)
        self._batch = None
        await self._stop_ack_extender()
        return True

    async def wait(self, seconds: float) -> None:
        """Return immediately: the pull has waited already."""

    async def end(self) -> None:
        """Return messages that were not recorded or arrived late, flush all acknowledgements, and write ConsumerLag."""
        await self._stop_ack_extender()
        held, self._batch, self._prefetched = self._held_messages(), None, None
        if not self._consumer.is_open:
            self.facts.clear()
            return  # JetStream redelivers the messages of a lost connection
        await self._return_messages(held)
        with contextlib.suppress(RetryableError):
            for message in self._consumer.take_late_messages():
                await message.nak()
            await self._nats.flush()
            metrics.add_metric("ConsumerLag", MetricUnit.Count, await self._measure_lag())

    async def _next_batch(self, budget: Budget) -> _EventBatch | None:
        """Return the prefetched batch, or fetch one; None if no message arrives within a second.

        Nothing is fetched before PostgreSQL has executed a statement.
        """
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None:
            return prefetched
        if not self._database_is_up:
            with self._database.session() as tx:
                find_genuine(tx, [], [])
                record_events(tx, [])
        self._database_is_up = False
        return await self._fetch(budget.longest_wait(_MAX_PULL_SECONDS))

    async def _fetch(self, wait: float) -> _EventBatch | None:
        """Fetch and decode a batch, and terminate messages that are not events."""
        await self._ensure_open()
        try:
            if time.monotonic() - self._lag_measured_at >= _LAG_SECONDS:
                await self._measure_lag()
            messages = await self._consumer.pull(self._settings.fetch, wait)
        except RetryableError:
            self._consumer.close()  # the consumer may have been deleted: verify the topology before the next pull
            self.facts.clear()
            raise
        if not messages:
            return None
        batch = _EventBatch({}, {}, is_full=len(messages) == self._settings.fetch)
        for message in messages:
            try:
                event = decode(message.data, message.headers)
            except RejectedError as error:
                await self._terminate(message, str(error))
                continue
            except Exception as error:  # noqa: BLE001 - a bug triggered by one message must not hold back the others
                await self._return_failed(message, repr(error))
                continue
            batch.events.setdefault(event.digest, event)
            batch.messages_by_digest.setdefault(event.digest, []).append(message)
        return batch

    async def _ensure_open(self) -> None:
        """Connect, verify the topology and subscribe, once for each connection."""
        if self._consumer.is_open:
            return
        self.facts.clear()
        self._lag_measured_at = -math.inf
        if not self._nats.is_connected:
            await self._nats.connect()
        await verify_topology(self._nats, self._topology)
        await self._consumer.open()

    async def _measure_lag(self) -> int:
        """Return the consumer lag, which is also a fact for the heartbeat, until the connection is lost."""
        self.facts.clear()
        lag = await self._consumer.count_unacknowledged()
        self._lag_measured_at = time.monotonic()
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        self.facts.update(consumer_lag=lag, consumer_lag_at=at)
        return lag

    async def _record(self, batch: _EventBatch) -> WriteResult[Event, list[str]]:
        """Write a batch, and prefetch the next one meanwhile if the stream may hold more."""
        prefetch = asyncio.create_task(self._prefetch()) if batch.is_full and self._prefetched is None else None
        try:
            return await asyncio.to_thread(self._write, list(batch.events.values()))
        finally:
            if prefetch is not None:
                await prefetch

    async def _prefetch(self) -> None:
        """Fetch the next batch; a failure is ignored, because the next fetch raises it again."""
        with contextlib.suppress(RetryableError):
            self._prefetched = await self._fetch(0)

    def _write(self, events: Sequence[Event]) -> WriteResult[Event, list[str]]:
        """Write the genuine events of a batch in one transaction: one statement, unless PostgreSQL refuses an event.

        The others are reported as permanent faults. The audit is append-only, so that the answer stays true.
        """
        with self._database.session() as tx:
            positions = find_genuine(tx, [event.payload for event in events], [event.digest for event in events])
            genuine = [event for position, event in enumerate(events) if position in positions]
            forged = [
                Fault(event, NOT_GENUINE, permanent=True)
                for position, event in enumerate(events)
                if position not in positions
            ]
            if not genuine:
                return WriteResult(None, forged)
            written = write_isolated(
                tx, genuine, lambda items: record_events(tx, items), probe=lambda: record_events(tx, [probe_event()])
            )
        return WriteResult(written.result, written.faults + forged)

    async def _acknowledge(self, batch: _EventBatch, written: WriteResult[Event, list[str]]) -> None:
        """Acknowledge the recorded messages of a batch, and terminate or return the others."""
        self._database_is_up = True
        for fault in written.faults:
            messages = batch.messages_by_digest.pop(fault.item.digest)
            self.counts["not_genuine"] += len(messages) if fault.reason == NOT_GENUINE else 0
            for message in messages:
                await (self._terminate if fault.permanent else self._return_failed)(message, fault.reason)
        accepted, new = batch.messages, len(written.result or [])
        self.counts["recorded"] += new
        self.counts["duplicates"] += len(accepted) - new
        # Does not wait for the server: a lost acknowledgement causes a redelivery, which changes nothing.
        await acknowledge(accepted)

    def _held_messages(self) -> list[Message]:
        """Return the messages of the current batch and of the prefetched one."""
        batches = (self._batch, self._prefetched)
        return [message for batch in batches if batch is not None for message in batch.messages]

    async def _extend_ack_wait(self) -> None:
        """Keep JetStream from redelivering the held messages until this task is cancelled."""
        with contextlib.suppress(RetryableError):  # without NATS they are redelivered, which is harmless
            while True:
                await asyncio.sleep(self._settings.ack_wait.total_seconds() / 3)
                for message in self._held_messages():
                    await message.in_progress()

    async def _stop_ack_extender(self) -> None:
        task, self._ack_extender = self._ack_extender, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _terminate(self, message: Message, reason: str) -> None:
        logger.error("message terminated", stream_seq=message.stream_sequence, reason=reason)
        await message.term(reason)
        self.counts["terminated"] += 1

    async def _return_failed(self, message: Message, reason: str) -> None:
        """Return one message that could not be recorded; at max-deliver it becomes a dead letter."""
        logger.error(
            "message failed, returned for redelivery",
            stream_seq=message.stream_sequence,
            deliveries=message.delivery_count,
            reason=reason,
        )
        await message.nak(self._redelivery_delay(message))
        self.counts["returned"] += 1

    async def _return_messages(self, messages: Sequence[Message]) -> None:
        """Return messages after an outage; none becomes a dead letter, not even on its last delivery."""
        self.counts["returned"] += len(messages)
        for message in messages:
            try:
                if message.delivery_count >= self._settings.max_deliver:
                    await self._republish(message)
                else:
                    await message.nak(self._redelivery_delay(message))
            except GrantwireError as error:
                logger.error("could not return message", reason=str(error), deliveries=message.delivery_count)

    def _redelivery_delay(self, message: Message) -> float:
        """Return the seconds until the next delivery: the ack wait, doubled with each delivery, up to ten minutes."""
        seconds = self._settings.ack_wait.total_seconds() * 2 ** min(message.delivery_count - 1, 30)
        return float(min(_MAX_DELAY_SECONDS, seconds))

    async def _republish(self, message: Message) -> None:
        """Publish a message again at the end of its stream; the event is the same, its delivery count starts at 1."""
        headers = {name: value for name, value in text_headers(message.headers).items() if not name.startswith("Nats-")}
        headers["Nats-Msg-Id"] = f"{self._settings.stream}:{message.stream_sequence}:again"
        await self._publisher.publish(message.subject, message.data, headers)
        await message.ack()
        logger.warning("message republished at end of stream", stream_seq=message.stream_sequence)
