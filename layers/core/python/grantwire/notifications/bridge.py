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
from typing import TYPE_CHECKING

from grantwire.broker import translated
from grantwire.errors import RejectedError, RetryableError
from grantwire.notifications.events import Event, decode
from grantwire.notifications.inbox import record, record_valid
from grantwire.observability import MetricUnit, log, metrics
from grantwire.pauses import Pause
from grantwire.pulling import Puller
from grantwire.topology import ensure_topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from uuid import UUID

    from nats.aio.msg import Msg

    from grantwire.broker import Broker
    from grantwire.budget import Budget
    from grantwire.database import Database
    from grantwire.topology import TopologySettings

# How long a pull waits for a message: PostgreSQL was asked before it, and might be gone after it.
_LONGEST_PULL = 1.0
_LONGEST_DELAY = 600.0

_METRICS = {
    "recorded": "NotificationsCreated",
    "duplicates": "DuplicateEvents",
    "terminated": "MessagesTerminated",
    "returned": "MessagesReturned",
}


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
        self._counts: Counter[str] = Counter()

    async def run(self, budget: Budget) -> dict[str, int]:
        """Work until the budget ends; with nothing un-acknowledged in hand, whatever happens."""
        self._counts = Counter(dict.fromkeys(_METRICS, 0))
        pause = Pause()
        try:
            await self._broker_alive()
            while not budget.over():
                try:
                    messages = await self._fetch(budget)
                    if messages:
                        await self._handle(messages, budget)
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

    async def _fetch(self, budget: Budget) -> list[Msg]:
        """What is there, or comes within a second; nothing is asked for before PostgreSQL has answered."""
        if not self._trusted:
            with self._database.session() as tx:
                record(tx, [])
        self._trusted = False
        puller = await self._open()
        try:
            messages = await puller.pull(
                self._consumer.fetch, 0 if budget.until_idle else min(_LONGEST_PULL, budget.left())
            )
        except RetryableError:
            self._puller = None
            raise
        return messages

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

    async def _handle(self, messages: Sequence[Msg], budget: Budget) -> None:
        """Terminate what is no event, record the rest, and only then acknowledge it."""
        events: dict[UUID, Event] = {}
        carriers: dict[UUID, list[Msg]] = {}
        for message in messages:
            try:
                event = decode(message.data, message.headers or {})
            except RejectedError as error:
                await self._terminate(message, str(error))
                continue
            events.setdefault(event.event_id, event)
            carriers.setdefault(event.event_id, []).append(message)
        if not events:
            return
        held = [message for carrying in carriers.values() for message in carrying]
        fresh, refused = await self._record(list(events.values()), held, budget)
        self._trusted = True
        for event_id, reason in refused.items():
            for message in carriers.pop(event_id):
                await self._terminate(message, reason)
        accepted = [message for carrying in carriers.values() for message in carrying]
        await self._acknowledge(accepted)
        self._counts["recorded"] += len(fresh)
        self._counts["duplicates"] += len(accepted) - len(fresh)

    async def _record(
        self, events: Sequence[Event], held: Sequence[Msg], budget: Budget
    ) -> tuple[list[UUID], dict[UUID, str]]:
        """Write a batch, through an absence of PostgreSQL too, while JetStream is told that it is in good hands."""
        try:
            async with self._kept(held):
                return await self._record_patiently(events, budget)
        except RetryableError:
            await self._return(held, mend=True)
            raise
        except BaseException:
            await self._return(held, mend=False)
            raise

    async def _record_patiently(self, events: Sequence[Event], budget: Budget) -> tuple[list[UUID], dict[UUID, str]]:
        pause = Pause()
        while True:
            try:
                return await asyncio.to_thread(self._write, events)
            except RetryableError as error:
                if budget.until_idle or budget.over():
                    raise
                log.warning("keeping a batch until PostgreSQL is back", events=len(events), reason=str(error))
                await asyncio.sleep(min(pause.next(), budget.left()))

    def _write(self, events: Sequence[Event]) -> tuple[list[UUID], dict[UUID, str]]:
        """The one transaction of a batch."""
        with self._database.session() as connection, connection.transaction():
            return record_valid(connection, events)

    @contextlib.asynccontextmanager
    async def _kept(self, held: Sequence[Msg]) -> AsyncIterator[None]:
        """Put the redelivery of messages off for as long as it takes."""

        async def keep() -> None:
            with contextlib.suppress(RetryableError):  # without NATS they are delivered again, which does no harm
                while True:
                    await asyncio.sleep(self._consumer.ack_wait.total_seconds() / 3)
                    await self._answer(held, b"+WPI")

        keeper = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _acknowledge(self, messages: Sequence[Msg]) -> None:
        """Without waiting for each: an acknowledgement that is lost leads to a duplicate, which changes nothing."""
        await self._answer(messages, b"+ACK")

    async def _answer(self, messages: Iterable[Msg], answer: bytes) -> None:
        client = self._broker.client
        async with translated():
            for message in messages:
                await client.publish(message.reply, answer)

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
                for message in self._puller.leftovers():
                    await message.nak()
                await self._broker.client.flush(timeout=1)
