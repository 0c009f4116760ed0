"""The recorder: takes advisories from their stream, copies their messages and writes both down (Q1).

An advisory is acknowledged only after its dead letter is committed, and may be delivered any number of times until
then. While PostgreSQL is out of reach nothing is fetched: the stream keeps what comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.database import translated as database_error
from grantwire.dead_letters import store
from grantwire.dead_letters.advisories import copy_message, parse_advisory
from grantwire.errors import InternalError, RejectedError, RetryableError
from grantwire.jetstream import translated
from grantwire.jetstream.pull_consumer import Puller
from grantwire.jetstream.topology import ensure_topology
from grantwire.observability import MetricUnit, log, metrics
from grantwire.pauses import Pause

if TYPE_CHECKING:
    from uuid import UUID

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from grantwire.database import Connection, Database
    from grantwire.dead_letters.advisories import Advisory, MessageCopy
    from grantwire.jetstream import Broker
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.workers.budget import Budget

_BATCH = 100
# How long one look at one consumer lasts; the other waits meanwhile.
_LOOK_SECONDS = 0.5
# An advisory that PostgreSQL refuses is a bug of ours: loud, out of the others' way, and kept until it is mended.
_REFUSED_SECONDS = 60.0
_GIVEN_BACK_SECONDS = 1.0
_FLUSH_SECONDS = 2

_PING = "SELECT 1"


@dataclass(frozen=True, slots=True)
class _Fetched:
    message: Msg
    advisory: Advisory
    copied: MessageCopy | None
    dead_letter_id: UUID | None = None
    refused: bool = False


class Recorder:
    """Records until its budget ends."""

    def __init__(self, database: Database, broker: Broker, topology: TopologySettings) -> None:
        self._database = database
        self._broker = broker
        self._topology = topology
        self._counts: Counter[str] = Counter()
        self._checked = False
        self._connection: Client | None = None
        self._consumers: list[Puller] = []

    async def work(self, budget: Budget) -> dict[str, Any]:
        """Record what has come and what comes; with `until_idle` stop when there is nothing more.

        Raises RetryableError only then, and only if PostgreSQL or NATS is out of reach.
        """
        self._counts = Counter(recorded=0, repeated=0, unreadable=0, processed=0)
        self._checked = False
        pause = Pause()
        while not budget.over():
            try:
                found = await self._round(budget)
            except RetryableError as error:
                if budget.until_idle:
                    raise
                log.warning("recorder waits", reason=str(error))
                await asyncio.sleep(min(pause.next(), budget.left()))
                continue
            pause = Pause()
            if budget.until_idle and not found:
                break
        self._close_processed()
        return dict(self._counts)

    async def close(self) -> None:
        """Let go of both servers."""
        await self._broker.close()
        self._database.close()

    async def _round(self, budget: Budget) -> int:
        """One look at each consumer; how many advisories there were."""
        await self._ready()
        found = 0
        for consumer in self._consumers:
            with self._database.session() as connection:
                connection.execute(_PING)
            messages = await self._pull(consumer, 0 if budget.until_idle else min(_LOOK_SECONDS, budget.left()))
            if messages:
                await self._handle(messages)
            found += len(messages)
        return found

    async def _pull(self, consumer: Puller, wait: float) -> list[Msg]:
        try:
            return await consumer.pull(_BATCH, wait)
        except RetryableError:
            self._connection = None  # the consumer may be gone: make sure of the topology again
            raise

    async def _ready(self) -> None:
        """A live connection, asked once in each invocation, and on a new one the topology and its consumers."""
        if not (self._checked and self._broker.is_connected):
            await self._broker.connect()
            self._checked = True
        if self._broker.client is self._connection:
            return
        await ensure_topology(self._broker, self._topology)
        advisories = self._topology.advisories
        self._consumers = [
            Puller(self._broker.client, replace(self._topology.consumer, stream=advisories.stream, durable=durable))
            for durable in (advisories.durable, advisories.terminated_durable)
        ]
        for consumer in self._consumers:
            await consumer.open()
        self._connection = self._broker.client

    async def _handle(self, messages: list[Msg]) -> None:
        """Copy, commit, acknowledge; what cannot be committed now goes back."""
        try:
            fetched = await self._read(messages)
            with self._database.session() as connection, connection.transaction():
                written = [_write(connection, one) for one in fetched]
        except RetryableError:
            await self._give_back(messages)
            raise
        async with translated():
            for one in written:
                await (one.message.nak(_REFUSED_SECONDS) if one.refused else one.message.ack())
            await self._broker.client.flush(timeout=_FLUSH_SECONDS)
        for one in written:
            self._report(one)

    async def _read(self, messages: list[Msg]) -> list[_Fetched]:
        """Each advisory with the copy of its message; one that is unreadable is terminated and forgotten."""
        fetched = []
        for message in messages:
            try:
                advisory = parse_advisory(message.data)
            except RejectedError as error:
                self._counts["unreadable"] += 1
                log.error("advisory is unreadable", subject=message.subject, reason=str(error))
                async with translated():
                    await self._broker.term(message, str(error))
                continue
            fetched.append(_Fetched(message, advisory, await copy_message(self._broker.jetstream, advisory)))
        return fetched

    def _report(self, one: _Fetched) -> None:
        if one.refused:
            return
        if one.dead_letter_id is None:
            self._counts["repeated"] += 1
            return
        self._counts["recorded"] += 1
        metrics.add_metric("DeadLettersRecorded", MetricUnit.Count, 1)
        log.error(
            "message is a dead letter",
            dead_letter_id=str(one.dead_letter_id),
            kind=one.advisory.kind,
            stream=one.advisory.stream,
            consumer=one.advisory.consumer,
            stream_seq=one.advisory.stream_seq,
            reason=one.advisory.reason,
            event_id=str(one.copied.event_id) if one.copied and one.copied.event_id else None,
            has_copy=one.copied is not None,
        )

    def _close_processed(self) -> None:
        """Once in each invocation: there is no hurry."""
        try:
            with self._database.session() as connection:
                closed = store.close_processed(connection, self._topology.consumer.durable)
        except RetryableError as error:
            log.warning("dead letters are compared with the inbox another time", reason=str(error))
            return
        self._counts["processed"] += len(closed)
        if closed:
            log.info("dead letters were processed after all", dead_letter_ids=[str(one) for one in closed])

    async def _give_back(self, messages: list[Msg]) -> None:
        """For whoever comes next; if that fails too, they come back by themselves."""
        try:
            async with translated():
                for message in messages:
                    await message.nak(_GIVEN_BACK_SECONDS)
                await self._broker.client.flush(timeout=_FLUSH_SECONDS)
        except RetryableError as error:
            log.warning("advisories come back after their ack-wait", reason=str(error))


def _write(tx: Connection, one: _Fetched) -> _Fetched:
    """Record one advisory; PostgreSQL's refusal of it does not hold back the others."""
    try:
        with tx.transaction():
            return replace(one, dead_letter_id=store.record(tx, one.advisory, one.copied))
    except psycopg.Error as error:
        if not isinstance(database_error(error), InternalError):
            raise
        log.exception("a dead letter cannot be written", stream_seq=one.advisory.stream_seq)
        return replace(one, refused=True)
