"""The recorder: takes advisories from their stream, copies their messages and writes both down (Q1).

An advisory is acknowledged only after its dead letter is committed, and may be delivered any number of times until
then. While PostgreSQL is out of reach nothing is fetched: the stream keeps what comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from grantwire.dead_letters import store
from grantwire.dead_letters.advisories import copy_message, parse_advisory
from grantwire.errors import GrantwireError, RejectedError, RetryableError
from grantwire.jetstream.topology import ensure_topology
from grantwire.observability import logger
from grantwire.workers.isolation import write_isolated
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.dead_letters.advisories import Advisory, MessageCopy
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.message import Message
    from grantwire.jetstream.pull_consumer import PullConsumer
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.workers.budget import Budget

_BATCH = 100
# How long one pull from one consumer waits; the other consumer waits meanwhile.
_PULL_SECONDS = 0.5
# An advisory that PostgreSQL refuses is a bug of ours: loud, out of the others' way, and kept until it is fixed.
_REFUSED_SECONDS = 60.0
_RETURNED_SECONDS = 1.0
_FLUSH_SECONDS = 2

_PING = "SELECT 1"


class _Fetched(NamedTuple):
    """An advisory, its message on its way to us, and the copy of the message that it is about."""

    message: Message
    advisory: Advisory
    copied: MessageCopy | None


class Recorder(Worker):
    """Records the advisories of two consumers, one batch of each in turn."""

    name = "record_advisories"
    counters: ClassVar[Mapping[str, str | None]] = {
        "recorded": "DeadLettersRecorded",
        "duplicates": None,
        "terminated": None,
        "returned": None,
        "processed": None,
    }

    def __init__(
        self,
        database: Database,
        nats: NatsConnection,
        consumers: Sequence[PullConsumer],
        topology: TopologySettings,
    ) -> None:
        super().__init__()
        self._database = database
        self._nats = nats
        self._consumers = consumers
        self._topology = topology
        self._checked = False

    async def begin(self) -> None:
        """A frozen sandbox loses its socket without noticing: check it before the first pull."""
        self._checked = False

    async def step(self, budget: Budget) -> bool:
        """Record one batch of each consumer; false if there was none."""
        await self._ensure_open()
        found = False
        for consumer in self._consumers:
            with self._database.session() as tx:
                tx.execute(_PING)
            messages = await self._pull(consumer, 0 if budget.until_idle else min(_PULL_SECONDS, budget.remaining()))
            if messages:
                await self._record(messages)
                found = True
        return found

    async def wait(self, seconds: float) -> None:
        """The pull has waited already."""

    async def end(self) -> None:
        """Close dead letters whose events were processed after all; once in each invocation is enough."""
        try:
            with self._database.session() as tx:
                closed = store.close_processed(tx, self._topology.consumer.durable)
        except GrantwireError as error:
            logger.warning("could not check dead letters against inbox, retrying next run", reason=str(error))
            return
        self.counts["processed"] += len(closed)
        if closed:
            logger.info("dead letters closed, events already processed", dead_letter_ids=[str(one) for one in closed])

    async def _ensure_open(self) -> None:
        """A live connection, checked once in each invocation, and on a new one the topology and its consumers."""
        if not (self._checked and self._nats.is_connected):
            await self._nats.connect()
            self._checked = True
        if all(consumer.is_open for consumer in self._consumers):
            return
        await ensure_topology(self._nats, self._topology)
        for consumer in self._consumers:
            await consumer.open()

    async def _pull(self, consumer: PullConsumer, wait: float) -> list[Message]:
        try:
            return await consumer.pull(_BATCH, wait)
        except RetryableError:
            consumer.close()  # it may be gone: make sure of the topology again
            raise

    async def _record(self, messages: list[Message]) -> None:
        """Copy, commit, acknowledge; what cannot be committed now is returned."""
        try:
            fetched = [one for message in messages if (one := await self._read(message)) is not None]
            with self._database.session() as tx:
                written = write_isolated(tx, fetched, lambda some: _write(tx, some)) if fetched else None
        except GrantwireError:
            await self._return(messages)
            raise
        if written is None:
            return
        for fault in written.faults:
            logger.error("could not record dead letter", stream_seq=fault.item.advisory.stream_seq, reason=fault.reason)
            await fault.item.message.nak(_REFUSED_SECONDS)
            self.counts["returned"] += 1
        for one, dead_letter_id in written.result or []:
            await one.message.ack()
            self._report(one, dead_letter_id)
        await self._nats.flush(_FLUSH_SECONDS)

    async def _read(self, message: Message) -> _Fetched | None:
        """An advisory with the copy of its message; one that is unreadable is terminated and forgotten."""
        try:
            advisory = parse_advisory(message.data)
        except RejectedError as error:
            logger.error("invalid advisory", subject=message.subject, reason=str(error))
            await message.term(str(error))
            self.counts["terminated"] += 1
            return None
        return _Fetched(message, advisory, await copy_message(self._nats, advisory))

    def _report(self, one: _Fetched, dead_letter_id: UUID | None) -> None:
        if dead_letter_id is None:
            self.counts["duplicates"] += 1
            return
        self.counts["recorded"] += 1
        logger.error(
            "dead letter recorded",
            dead_letter_id=str(dead_letter_id),
            kind=one.advisory.kind,
            stream=one.advisory.stream,
            consumer=one.advisory.consumer,
            stream_seq=one.advisory.stream_seq,
            reason=one.advisory.reason,
            event_id=str(one.copied.event_id) if one.copied and one.copied.event_id else None,
            has_copy=one.copied is not None,
        )

    async def _return(self, messages: list[Message]) -> None:
        """Return them for another run; if that fails too, they come back after their ack-wait."""
        self.counts["returned"] += len(messages)
        try:
            for message in messages:
                await message.nak(_RETURNED_SECONDS)
            await self._nats.flush(_FLUSH_SECONDS)
        except RetryableError as error:
            logger.warning("could not return advisories, JetStream redelivers them", reason=str(error))


def _write(tx: Connection, fetched: Sequence[_Fetched]) -> list[tuple[_Fetched, UUID | None]]:
    """Write dead letters in one transaction; the id of each, None if it was there already."""
    with tx.transaction():
        return [(one, store.record(tx, one.advisory, one.copied)) for one in fetched]
