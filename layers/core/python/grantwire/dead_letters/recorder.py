"""The recorder: reads advisories from their stream, and records each with a copy of its message (Q1).

An advisory is acknowledged only after its dead letter is committed; until then JetStream may deliver it any number of
times. While PostgreSQL is unavailable nothing is fetched, and the stream keeps the advisories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from grantwire.dead_letters import store
from grantwire.dead_letters.advisories import copy_message, parse_advisory
from grantwire.errors import GrantwireError, RejectedError, RetryableError
from grantwire.jetstream.topology import verify_topology
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

_BATCH_SIZE = 100
# Short, because the two consumers are pulled in turn.
_MAX_PULL_SECONDS = 0.5
# If PostgreSQL refuses an advisory, that is a bug in Grantwire. The advisory is logged as an error and redelivered
# until the bug is fixed, with a delay that leaves time for the others.
_REFUSED_DELAY_SECONDS = 60.0
_OUTAGE_DELAY_SECONDS = 1.0
_FLUSH_TIMEOUT_SECONDS = 2

_PING = "SELECT 1"


class _FetchedAdvisory(NamedTuple):
    """An advisory, the message that delivered it, and the copy of the message that it is about."""

    message: Message
    advisory: Advisory
    copied: MessageCopy | None


class Recorder(Worker):
    """Worker that records the advisories of its consumers, one batch of each in turn."""

    name = "record_advisories"
    counters: ClassVar[Mapping[str, str | None]] = {
        "recorded": "DeadLettersRecorded",
        "duplicates": None,
        "terminated": None,
        "refused": "AdvisoriesRefused",
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
        self._is_connection_checked = False

    async def begin(self) -> None:
        """Have the connection checked before the first pull, because a frozen sandbox loses its socket unnoticed."""
        self._is_connection_checked = False

    async def step(self, budget: Budget) -> bool:
        """Record one batch of each consumer; return false if there were no advisories."""
        await self._ensure_open()
        is_busy = False
        for consumer in self._consumers:
            with self._database.session() as tx:
                tx.execute(_PING)
            seconds = budget.longest_wait(_MAX_PULL_SECONDS)
            messages = await self._pull(consumer, seconds)
            if messages:
                await self._record(messages)
                is_busy = True
        return is_busy

    async def wait(self, seconds: float) -> None:
        """Return immediately: the pull has waited already."""

    async def end(self) -> None:
        """Close dead letters whose events were processed after all, once in each invocation."""
        try:
            with self._database.session() as tx:
                closed = store.close_processed(tx, self._topology.consumer.durable)
        except GrantwireError as error:
            logger.warning("could not check dead letters against inbox, retrying next run", reason=str(error))
            return
        self.counts["processed"] += len(closed)
        if closed:
            logger.info("dead letters closed, events already processed", dead_letter_ids=list(map(str, closed)))

    async def _ensure_open(self) -> None:
        """Check the connection once in each invocation; on a new one, verify the topology and open the consumers."""
        if not (self._is_connection_checked and self._nats.is_connected):
            await self._nats.connect()
            self._is_connection_checked = True
        if all(consumer.is_open for consumer in self._consumers):
            return
        await verify_topology(self._nats, self._topology)
        for consumer in self._consumers:
            await consumer.open()

    async def _pull(self, consumer: PullConsumer, wait: float) -> list[Message]:
        try:
            return await consumer.pull(_BATCH_SIZE, wait)
        except RetryableError:
            consumer.close()  # the consumer may have been deleted: verify the topology before the next pull
            raise

    async def _record(self, messages: list[Message]) -> None:
        """Copy the messages of advisories, commit, then acknowledge; return all advisories if the commit fails."""
        try:
            fetched = [item for message in messages if (item := await self._read(message)) is not None]
            with self._database.session() as tx:
                written = write_isolated(tx, fetched, lambda items: _write(tx, items)) if fetched else None
        except GrantwireError:
            await self._return_messages(messages)
            raise
        if written is None:
            return
        for fault in written.faults:
            logger.error("could not record dead letter", stream_seq=fault.item.advisory.stream_seq, reason=fault.reason)
            await fault.item.message.nak(_REFUSED_DELAY_SECONDS)
            self.counts["returned"] += 1
        for item, dead_letter_id in written.result or []:
            await item.message.ack()
            self._report(item, dead_letter_id)
        await self._nats.flush(_FLUSH_TIMEOUT_SECONDS)

    async def _read(self, message: Message) -> _FetchedAdvisory | None:
        """Parse an advisory and copy its message; terminate an invalid or foreign advisory and return None."""
        try:
            advisory = parse_advisory(message.data)
        except RejectedError as error:
            logger.error("invalid advisory", subject=message.subject, reason=str(error))
            await message.term(str(error))
            self.counts["terminated"] += 1
            return None
        if (advisory.stream, advisory.consumer) != (self._topology.events.stream, self._topology.consumer.durable):
            await self._refuse(message, advisory)
            return None
        return _FetchedAdvisory(message, advisory, await copy_message(self._nats, advisory))

    async def _refuse(self, message: Message, advisory: Advisory) -> None:
        """Terminate an advisory about a foreign stream or consumer, which JetStream does not send to our subjects."""
        logger.error(
            "foreign advisory refused",
            subject=message.subject,
            stream=advisory.stream,
            consumer=advisory.consumer,
            stream_seq=advisory.stream_seq,
        )
        await message.term("not about the bridge's consumer")
        self.counts["refused"] += 1

    def _report(self, item: _FetchedAdvisory, dead_letter_id: UUID | None) -> None:
        if dead_letter_id is None:
            self.counts["duplicates"] += 1
            return
        self.counts["recorded"] += 1
        logger.error(
            "dead letter recorded",
            dead_letter_id=str(dead_letter_id),
            kind=item.advisory.kind,
            stream=item.advisory.stream,
            consumer=item.advisory.consumer,
            stream_seq=item.advisory.stream_seq,
            reason=item.advisory.reason,
            event_id=str(item.copied.event_id) if item.copied and item.copied.event_id else None,
            has_copy=item.copied is not None,
        )

    async def _return_messages(self, messages: list[Message]) -> None:
        """Return advisories for redelivery; if NATS fails, too, JetStream redelivers them after their ack wait."""
        self.counts["returned"] += len(messages)
        try:
            for message in messages:
                await message.nak(_OUTAGE_DELAY_SECONDS)
            await self._nats.flush(_FLUSH_TIMEOUT_SECONDS)
        except RetryableError as error:
            logger.warning("could not return advisories, JetStream redelivers them", reason=str(error))


def _write(tx: Connection, items: Sequence[_FetchedAdvisory]) -> list[tuple[_FetchedAdvisory, UUID | None]]:
    """Write dead letters in one transaction; return each with its id, or None if it existed already."""
    with tx.transaction():
        return [(item, store.record(tx, item.advisory, item.copied)) for item in items]
