"""From JetStream to PostgreSQL: batches of events, one transaction each, acknowledged after the commit (N3 to N6).

A fault of the database is not a message's fault. While PostgreSQL is out of reach nothing is fetched; what is in hand
when it fails is kept, with its redelivery put off, and tried again for as long as the budget lasts. Then it is given
back with a delay that doubles with each delivery. A message on its last delivery is put at the end of the stream
instead, under an id of its own, because JetStream would make a dead letter of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from grantwire.errors import RejectedError, RetryableError
from grantwire.jetstream import translated
from grantwire.jetstream.pull_consumer import Puller
from grantwire.jetstream.topology import ensure_topology
from grantwire.notifications.events import Event, decode
from grantwire.notifications.inbox import record, record_valid
from grantwire.observability import MetricUnit, log, metrics
from grantwire.pauses import Pause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from nats.aio.msg import Msg

    from grantwire.database import Database
    from grantwire.jetstream import Broker
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.workers.budget import Budget

# How long a pull waits for a message: PostgreSQL was asked before it, and might be gone after it.
_LONGEST_PULL = 1.0
_LONGEST_DELAY = 600.0

_METRICS = {
    "recorded": "NotificationsCreated",
    "duplicates": "DuplicateEvents",
    "terminated": "MessagesTerminated",
    "returned": "MessagesReturned",
}


class _Batch(NamedTuple):
    """Events of one fetch, by id, and the messages that carry each; `full` if there may be more where it came from."""

    events: dict[str, Event]
    carriers: dict[str, list[Msg]]
    full: bool

    @property
    def messages(self) -> list[Msg]:
        """All of them."""
        return [message for carrying in self.carriers.values() for message in carrying]


class Bridge:
    """Moves events from one durable consumer into the inbox. Belongs to one event loop, like its broker."""

    def __init__(self, database: Database, broker: Broker, topology: TopologySettings) -> None:
        self._database = database
        self._broker = broker
        self._topology = topology
        self._consumer = topology.consumer
        self._puller: Puller | None = None
        # The last thing that PostgreSQL was asked to do, it did.
        self._trusted = False
        # Fetched and read while PostgreSQL wrote the batch before it.
        self._ahead: _Batch | None = None
        self._counts: Counter[str] = Counter()

    async def run(self, budget: Budget) -> dict[str, int]:
        """Work until the budget ends; with nothing un-acknowledged in hand, whatever happens."""
        self._counts = Counter(dict.fromkeys(_METRICS, 0))
        self._ahead = None  # what a broken connection left of the last time has been delivered to others
        pause = Pause()
        try:
            await self._broker_alive()
            while not budget.over():
                try:
                    batch = await self._next(budget)
                    if batch is not None:
                        await self._handle(batch, budget)
                    elif budget.until_idle:
                        break
                    pause = Pause()
                except RetryableError as error:
                    if budget.until_idle:
                        raise
                    log.warning("waiting for a server", reason=str(error))
                    await asyncio.sleep(min(pause.next(), budget.left()))
        finally:
            await self._leave()
            for name, metric in _METRICS.items():
                if self._counts[name]:
                    metrics.add_metric(metric, MetricUnit.Count, self._counts[name])
        return dict(self._counts)

    async def _broker_alive(self) -> None:
        """A frozen sandbox loses its socket without noticing; if there is no new one, the first fetch says so."""
        with contextlib.suppress(RetryableError):
            await self._broker.connect()

    async def _next(self, budget: Budget) -> _Batch | None:
        """What was fetched ahead, or is there, or comes within a second; None if nothing does.

        Nothing is asked for before PostgreSQL has answered.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        if not self._trusted:
            with self._database.session() as tx:
                record(tx, [])
        self._trusted = False
        return await self._fetch(0 if budget.until_idle else min(_LONGEST_PULL, budget.left()))

    async def _fetch(self, wait: float) -> _Batch | None:
        """A batch, read; what is no event is terminated."""
        puller = await self._open()
        try:
            messages = await puller.pull(self._consumer.fetch, wait)
        except RetryableError:
            self._puller = None
            raise
        if not messages:
            return None
        batch = _Batch({}, {}, full=len(messages) == self._consumer.fetch)
        for message in messages:
            try:
                event = decode(message.data, message.headers or {})
            except RejectedError as error:
                await self._terminate(message, str(error))
                continue
            batch.events.setdefault(event.event_id, event)
            batch.carriers.setdefault(event.event_id, []).append(message)
        return batch

    async def _look_ahead(self) -> None:
        """Have the next batch ready; if that fails, the next fetch will say so."""
        with contextlib.suppress(RetryableError):
            self._ahead = await self._fetch(0)

    async def _open(self) -> Puller:
        """Connection, topology and subscription, made once for each connection."""
        if self._puller is None or not self._broker.is_connected or self._puller.client is not self._broker.client:
            if not self._broker.is_connected:
                await self._broker.connect()
            await ensure_topology(self._broker, self._topology)
            puller = Puller(self._broker.client, self._consumer)
            await puller.open()
            self._puller = puller
        return self._puller

    async def _handle(self, batch: _Batch, budget: Budget) -> None:
        """Record a batch, and only then acknowledge it."""
        if not batch.events:
            return
        fresh, refused = await self._record(batch, budget)
        self._trusted = True
        for event_id, reason in refused.items():
            for message in batch.carriers.pop(event_id):
                await self._terminate(message, reason)
        accepted = batch.messages
        self._acknowledge(accepted)
        self._counts["recorded"] += len(fresh)
        self._counts["duplicates"] += len(accepted) - len(fresh)

    async def _record(self, batch: _Batch, budget: Budget) -> tuple[list[str], dict[str, str]]:
        """Write a batch, through an absence of PostgreSQL too, while JetStream is told that it is in good hands."""
        looking = asyncio.create_task(self._look_ahead()) if batch.full else None
        try:
            async with self._kept(batch):
                return await self._record_patiently(list(batch.events.values()), budget)
        except BaseException as error:
            if looking is not None:
                await asyncio.wait({looking})
            await self._return(self._held(batch), mend=isinstance(error, RetryableError))
            self._ahead = None
            raise
        finally:
            if looking is not None:
                await looking

    def _held(self, batch: _Batch) -> list[Msg]:
        """What is in hand: this batch, and the next."""
        return batch.messages + ([] if self._ahead is None else self._ahead.messages)

    async def _record_patiently(self, events: Sequence[Event], budget: Budget) -> tuple[list[str], dict[str, str]]:
        pause = Pause()
        while True:
            try:
                return await asyncio.to_thread(self._write, events)
            except RetryableError as error:
                if budget.until_idle or budget.over():
                    raise
                log.warning("keeping a batch until PostgreSQL is back", events=len(events), reason=str(error))
                await asyncio.sleep(min(pause.next(), budget.left()))

    def _write(self, events: Sequence[Event]) -> tuple[list[str], dict[str, str]]:
        """The one transaction of a batch: one statement, unless one of the events is refused."""
        with self._database.session() as connection:
            try:
                return record(connection, events), {}
            except RejectedError:
                with connection.transaction():
                    return record_valid(connection, events)

    @contextlib.asynccontextmanager
    async def _kept(self, batch: _Batch) -> AsyncIterator[None]:
        """Put the redelivery of messages off for as long as it takes."""

        async def keep() -> None:
            with contextlib.suppress(RetryableError):  # without NATS they are delivered again, which does no harm
                while True:
                    await asyncio.sleep(self._consumer.ack_wait.total_seconds() / 3)
                    self._answer(self._held(batch), "+WPI")

        keeper = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    def _acknowledge(self, messages: Sequence[Msg]) -> None:
        """Without waiting for each: an acknowledgement that is lost leads to a duplicate, which changes nothing."""
        self._answer(messages, "+ACK")

    def _answer(self, messages: Iterable[Msg], answer: str) -> None:
        """The same for all of them, in one write."""
        words = [f"PUB {message.reply} {len(answer)}\r\n{answer}\r\n" for message in messages]
        self._broker.client.write("".join(words).encode())

    async def _terminate(self, message: Msg, reason: str) -> None:
        log.error("message terminated", stream_seq=message.metadata.sequence.stream, reason=reason)
        async with translated():
            await self._broker.term(message, reason)
        self._counts["terminated"] += 1

    async def _return(self, messages: Sequence[Msg], *, mend: bool) -> None:
        """Give messages back, to be delivered later; with `mend`, not even the last delivery ends in a dead letter."""
        self._counts["returned"] += len(messages)
        for message in messages:
            delivered = message.metadata.num_delivered
            try:
                async with translated():
                    if mend and delivered >= self._consumer.max_deliver:
                        await self._requeue(message)
                    else:
                        seconds = self._consumer.ack_wait.total_seconds() * 2 ** min(delivered - 1, 30)
                        await message.nak(delay=min(_LONGEST_DELAY, seconds))
            except (RejectedError, RetryableError) as error:
                log.error("a message could not be given back", reason=str(error), deliveries=delivered)

    async def _requeue(self, message: Msg) -> None:
        """Put a message at the end of its stream: the event is the same, the deliveries are counted anew."""
        sequence = message.metadata.sequence.stream
        headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith("Nats-")}
        headers["Nats-Msg-Id"] = f"{self._consumer.stream}:{sequence}:again"
        await self._broker.publish(message.subject, message.data, headers)
        await message.ack()
        log.warning("message put at the end of the stream", stream_seq=sequence)

    async def _leave(self) -> None:
        """Give back what came late, and see to it that every answer has left."""
        if self._puller is None or not self._broker.is_connected:
            return
        with contextlib.suppress(RetryableError):
            async with translated():
                ahead, self._ahead = self._ahead, None
                for message in self._puller.leftovers() + ([] if ahead is None else ahead.messages):
                    await message.nak()
                await self._broker.client.flush(timeout=1)
