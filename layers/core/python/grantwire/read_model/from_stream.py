"""The read model from the events that JetStream still has (P2).

A consumer of the replay's own reads them; the bridge's is not touched, and neither are inbox and notifications. The
guard of the projection makes it harmless at any time: what is known already, or better, stays.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError, RetryableError
from grantwire.jetstream.pull_consumer import temporary_consumer
from grantwire.observability import logger
from grantwire.read_model.model import project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grantwire.database import Database
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.message import Message
    from grantwire.jetstream.pull_consumer import PullConsumer
    from grantwire.workers.budget import Budget

_BATCH = 1000
# A replay that was killed leaves its consumer behind for so long.


@dataclass(slots=True)
class StreamRebuildReport:
    """How far a replay has come: everything from `first` to `reached`, of which `last` was the end when it began."""

    dry_run: bool
    first: int
    last: int
    reached: int
    events: int = 0
    changed: int = 0
    skipped: int = 0

    @property
    def complete(self) -> bool:
        """Whether it has come to the end."""
        return self.reached >= self.last

    def as_dict(self) -> dict[str, Any]:
        """The answer; if there is more to do, with the `from_sequence` to go on with."""
        return {
            "source": "stream",
            "dry_run": self.dry_run,
            "from_sequence": self.first,
            "reached": self.reached,
            "last_sequence": self.last,
            "events": self.events,
            "changed": self.changed,
            "skipped": self.skipped,
            "complete": self.complete,
        } | ({} if self.complete else {"continue_from": self.reached + 1})


class StreamRebuild:
    """Reads one stream from some message on. Belongs to one event loop, like its connection.

    `decode` makes the payload of an event out of a message's bytes, or raises RejectedError.
    """

    def __init__(
        self, database: Database, nats: NatsConnection, stream: str, decode: Callable[[bytes], Mapping[str, Any]]
    ) -> None:
        self._database = database
        self._nats = nats
        self._stream = stream
        self._decode = decode

    async def run(
        self,
        budget: Budget,
        *,
        first: int = 1,
        dry_run: bool = False,
        on_batch: Callable[[StreamRebuildReport], None] = lambda _: None,
    ) -> StreamRebuildReport:
        """Project every event from `first` to the last one that there is now, or as far as the budget allows.

        Later ones are the bridge's. With `dry_run` they are only read. A RetryableError says where to go on.
        """
        await self._nats.connect()
        report = StreamRebuildReport(dry_run, first, await self._nats.last_sequence(self._stream), first - 1)
        try:
            if not report.complete:
                async with temporary_consumer(self._nats, self._stream, first=first) as consumer:
                    await self._read(consumer, report, budget, on_batch)
        except RetryableError as error:
            raise RetryableError(f"{error}; go on with from_sequence {report.reached + 1}") from error
        return report

    async def _read(
        self,
        consumer: PullConsumer,
        report: StreamRebuildReport,
        budget: Budget,
        on_batch: Callable[[StreamRebuildReport], None],
    ) -> None:
        delivered = 0
        while not report.complete and not budget.is_over():
            messages = await consumer.pull(_BATCH, 0)
            if not messages:
                # The rest has left the stream since.
                report.reached = report.last
                return
            for message in messages:
                delivered += 1
                if message.consumer_sequence != delivered:
                    raise RetryableError("messages were lost on their way from JetStream")
            await self._apply(messages, report)
            on_batch(report)

    async def _apply(self, messages: Sequence[Message], report: StreamRebuildReport) -> None:
        """Project a batch in one statement; what is no event, or what the database refuses, is told and left out."""
        wanted = [message for message in messages if message.stream_sequence <= report.last]
        events: list[tuple[int, Mapping[str, Any]]] = []
        for message in wanted:
            sequence = message.stream_sequence
            try:
                events.append((sequence, self._decode(message.data)))
            except RejectedError as error:
                _skip(report, sequence, error)
        if report.dry_run:
            report.events += len(events)
        else:
            await asyncio.to_thread(self._project, events, report)
        report.reached = wanted[-1].stream_sequence if len(wanted) == len(messages) else report.last

    def _project(self, events: Sequence[tuple[int, Mapping[str, Any]]], report: StreamRebuildReport) -> None:
        try:
            with self._database.session() as connection:
                report.changed += project(connection, [payload for _, payload in events])
            report.events += len(events)
        except RejectedError as error:
            if len(events) == 1:
                _skip(report, events[0][0], error)
                return
            for one in events:
                self._project([one], report)


def _skip(report: StreamRebuildReport, sequence: int, error: RejectedError) -> None:
    logger.warning("message skipped in rebuild", stream_seq=sequence, reason=str(error))
    report.skipped += 1
