"""From JetStream to PostgreSQL: batches of events, one transaction each, acknowledged after the commit (N3 to N6).

A fault of the database is not a message's fault. While PostgreSQL is out of reach nothing is fetched; a batch that is
held when it fails is kept, with its redelivery put off, and tried again for as long as the budget lasts. Then it is
returned with a delay that doubles with each delivery. A message on its last delivery is put at the end of the stream
instead, under an id of its own, because JetStream would make a dead letter of it.

A message that PostgreSQL refuses by itself never holds back its neighbours: bad data are terminated at once, and what
fails for another reason is returned with delay, until max-deliver makes it a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from grantwire.errors import GrantwireError, RejectedError, RetryableError
from grantwire.jetstream.message import acknowledge, text_headers
from grantwire.jetstream.topology import ensure_topology
from grantwire.notifications.events import Event, decode, probe_event
from grantwire.notifications.inbox import record
from grantwire.observability import logger
from grantwire.workers.isolation import WriteResult, write_isolated
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

# How long a pull waits for a message: PostgreSQL was asked before it, and might be gone after it.
_LONGEST_PULL_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 600.0


class _Batch(NamedTuple):
    """Events of one fetch, by id, and the messages that carry each; `full` if there may be more in the stream."""

    events: dict[str, Event]
    carriers: dict[str, list[Message]]
    full: bool

    @property
    def messages(self) -> list[Message]:
        """All of them."""
        return [message for carrying in self.carriers.values() for message in carrying]


class Bridge(Worker):
    """Moves events from one durable consumer into the inbox. Belongs to one event loop, like its connection."""

    name = "bridge_events"
    counters: ClassVar[Mapping[str, str | None]] = {
        "recorded": "NotificationsCreated",
        "duplicates": "DuplicateEvents",
        "terminated": "MessagesTerminated",
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
        # The last statement that PostgreSQL was sent, it executed.
        self._database_answers = False
        # What is being recorded, until PostgreSQL has it; and what was fetched and decoded meanwhile.
        self._batch: _Batch | None = None
        self._ahead: _Batch | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """A frozen sandbox loses its socket without noticing; if there is no new one, the first fetch says so."""
        with contextlib.suppress(RetryableError):
            await self._nats.connect()

    async def step(self, budget: Budget) -> bool:
        """Record one batch, and only then acknowledge it; false if no message came.

        A batch that PostgreSQL could not be asked to record is kept for the next step.
        """
        if not self._consumer.is_open:
            self._batch = self._ahead = None  # what a broken connection delivered is delivered to others
        if self._batch is None:
            self._batch = await self._next_batch(budget)
        if self._batch is None:
            return False
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_in_progress())
        if self._batch.events:
            written = await self._record(self._batch)
            await self._respond(self._batch, written)
        self._batch = None
        await self._stop_keeper()
        return True

    async def wait(self, seconds: float) -> None:
        """The pull has waited already."""

    async def end(self) -> None:
        """Return what could not be recorded and what came late, and make sure that every response has left."""
        await self._stop_keeper()
        held, self._batch, self._ahead = self._held(), None, None
        if not self._consumer.is_open:
            return  # what a broken connection delivered is delivered to others
        await self._return_all(held)
        with contextlib.suppress(RetryableError):
            for message in self._consumer.take_late_messages():
                await message.nak()
            await self._nats.flush()

    async def _next_batch(self, budget: Budget) -> _Batch | None:
        """Return what was fetched ahead, or is there, or comes within a second; None if nothing does.

        Nothing is fetched before PostgreSQL has answered.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        if not self._database_answers:
            with self._database.session() as tx:
                record(tx, [])
        self._database_answers = False
        return await self._fetch(0 if budget.until_idle else min(_LONGEST_PULL_SECONDS, budget.remaining()))

    async def _fetch(self, wait: float) -> _Batch | None:
        """Fetch and decode a batch; what is not an event is terminated."""
        await self._ensure_open()
        try:
            messages = await self._consumer.pull(self._settings.fetch, wait)
        except RetryableError:
            self._consumer.close()  # it may be gone: make sure of the topology again
            raise
        if not messages:
            return None
        batch = _Batch({}, {}, full=len(messages) == self._settings.fetch)
        for message in messages:
            try:
                event = decode(message.data, message.headers)
            except RejectedError as error:
                await self._terminate(message, str(error))
                continue
            except Exception as error:  # noqa: BLE001 - a bug that one message meets must not hold back the others
                await self._return(message, repr(error))
                continue
            batch.events.setdefault(event.event_id, event)
            batch.carriers.setdefault(event.event_id, []).append(message)
        return batch

    async def _ensure_open(self) -> None:
        """Connection, topology and subscription, made once for each connection."""
        if self._consumer.is_open:
            return
        if not self._nats.is_connected:
            await self._nats.connect()
        await ensure_topology(self._nats, self._topology)
        await self._consumer.open()

    async def _record(self, batch: _Batch) -> WriteResult[Event, list[str]]:
        """Write a batch; meanwhile the next one is fetched if there may be more."""
        fetching = asyncio.create_task(self._fetch_ahead()) if batch.full and self._ahead is None else None
        try:
            return await asyncio.to_thread(self._write, list(batch.events.values()))
        finally:
            if fetching is not None:
                await fetching

    async def _fetch_ahead(self) -> None:
        """Have the next batch ready; if that fails, the next fetch will say so."""
        with contextlib.suppress(RetryableError):
            self._ahead = await self._fetch(0)

    def _write(self, events: Sequence[Event]) -> WriteResult[Event, list[str]]:
        """The one transaction of a batch: one statement, unless one of the events is refused."""
        with self._database.session() as tx:
            return write_isolated(tx, events, lambda some: record(tx, some), probe=lambda: record(tx, [probe_event()]))

    async def _respond(self, batch: _Batch, written: WriteResult[Event, list[str]]) -> None:
        self._database_answers = True
        for fault in written.faults:
            for message in batch.carriers.pop(fault.item.event_id):
                await (self._terminate if fault.permanent else self._return)(message, fault.reason)
        accepted, fresh = batch.messages, len(written.result or [])
        self.counts["recorded"] += fresh
        self.counts["duplicates"] += len(accepted) - fresh
        # Without waiting for the server: one that is lost leads to a duplicate, which changes nothing.
        await acknowledge(accepted)

    def _held(self) -> list[Message]:
        """What is in hand: this batch, and the next."""
        return [message for batch in (self._batch, self._ahead) if batch is not None for message in batch.messages]

    async def _keep_in_progress(self) -> None:
        """Put the redelivery of what is held off for as long as it takes."""
        with contextlib.suppress(RetryableError):  # without NATS they are delivered again, which does no harm
            while True:
                await asyncio.sleep(self._settings.ack_wait.total_seconds() / 3)
                for message in self._held():
                    await message.in_progress()

    async def _stop_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _terminate(self, message: Message, reason: str) -> None:
        logger.error("message terminated", stream_seq=message.stream_sequence, reason=reason)
        await message.term(reason)
        self.counts["terminated"] += 1

    async def _return(self, message: Message, reason: str) -> None:
        """Return one message that failed by itself; at max-deliver JetStream makes a dead letter of it."""
        logger.error(
            "message failed, returned for redelivery",
            stream_seq=message.stream_sequence,
            deliveries=message.delivery_count,
            reason=reason,
        )
        await message.nak(self._delay(message))
        self.counts["returned"] += 1

    async def _return_all(self, messages: Sequence[Message]) -> None:
        """Return messages after a fault that is not theirs: not even the last delivery ends in a dead letter."""
        self.counts["returned"] += len(messages)
        for message in messages:
            try:
                if message.delivery_count >= self._settings.max_deliver:
                    await self._requeue(message)
                else:
                    await message.nak(self._delay(message))
            except GrantwireError as error:
                logger.error("could not return message", reason=str(error), deliveries=message.delivery_count)

    def _delay(self, message: Message) -> float:
        """Seconds until the next delivery; they double with each."""
        seconds = self._settings.ack_wait.total_seconds() * 2 ** min(message.delivery_count - 1, 30)
        return float(min(_LONGEST_DELAY_SECONDS, seconds))

    async def _requeue(self, message: Message) -> None:
        """Put a message at the end of its stream: the event is the same, the deliveries are counted anew."""
        own = text_headers(message.headers).items()
        headers = {name: value for name, value in own if not name.startswith("Nats-")}
        headers["Nats-Msg-Id"] = f"{self._settings.stream}:{message.stream_sequence}:again"
        await self._publisher.publish(message.subject, message.data, headers)
        await message.ack()
        logger.warning("message republished at end of stream", stream_seq=message.stream_sequence)
