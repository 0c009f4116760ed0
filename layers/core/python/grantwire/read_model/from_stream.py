"""Rebuild of the read model from the events that JetStream still has (P2).

The rebuild reads with a temporary consumer. It does not touch the bridge's consumer, the inbox or notifications. It is
safe at any time, because the projection ignores an event that is not newer than the row. Each batch is a transaction
with its row in `operator_actions`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError, RetryableError
from grantwire.jetstream.pull_consumer import temporary_consumer
from grantwire.observability import logger
from grantwire.operator_actions import OperatorAction, record_rebuild
from grantwire.read_model.model import project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grantwire.database import Connection, Database
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.message import Message
    from grantwire.jetstream.pull_consumer import PullConsumer
    from grantwire.operator_actions import Operator
    from grantwire.workers.budget import Budget

_BATCH_SIZE = 1000


@dataclass(slots=True)
class StreamRebuildReport:
    """The progress of a rebuild: the messages `first` to `reached` are done.

    `last` was the last sequence of the stream when the rebuild began. `action` is None for a dry run, which is not
    recorded; otherwise `batches` rows have been recorded for it.
    """

    action: OperatorAction | None
    first: int
    last: int
    reached: int
    events: int = 0
    changed: int = 0
    skipped: int = 0
    batches: int = 0

    @property
    def complete(self) -> bool:
        """Whether the rebuild has reached `last`."""
        return self.reached >= self.last

    def as_dict(self) -> dict[str, Any]:
        """Return the function's result; `continue_from` is the next `from_sequence` of an incomplete rebuild."""
        return {
            "source": "stream",
            "dry_run": self.action is None,
            "from_sequence": self.first,
            "reached": self.reached,
            "last_sequence": self.last,
            "events": self.events,
            "changed": self.changed,
            "skipped": self.skipped,
            "complete": self.complete,
        } | ({} if self.complete else {"continue_from": self.reached + 1})


class StreamRebuild:
    """Projects the events of one stream. Belongs to one event loop, like its connection.

    `decode` returns the payload of the event in a message, or raises RejectedError.
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
        operator: Operator | None,
        *,
        first: int = 1,
        on_batch: Callable[[StreamRebuildReport], None] = lambda _: None,
    ) -> StreamRebuildReport:
        """Project every event from `first` to the last one in the stream now, or as many as the budget allows.

        Events published later are left to the bridge. Without an operator it is a dry run: events are only read. The
        text of a RetryableError names the `from_sequence` to continue with.
        """
        await self._nats.connect()
        selection = {"source": "stream", "stream": self._stream, "from_sequence": first}
        action = None if operator is None else OperatorAction(operator, "rebuild", "read_model", selection)
        report = StreamRebuildReport(action, first, await self._nats.last_sequence(self._stream), first - 1)
        try:
            if not report.complete:
                async with temporary_consumer(self._nats, self._stream, first=first) as consumer:
                    await self._read(consumer, report, budget, on_batch)
        except RetryableError as error:
            raise RetryableError(f"{error}; continue with from_sequence {report.reached + 1}") from error
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
            messages = await consumer.pull(_BATCH_SIZE, 0)
            if not messages:
                # The remaining messages have been deleted from the stream meanwhile.
                report.reached = report.last
                return
            for message in messages:
                delivered += 1
                if message.consumer_sequence != delivered:
                    raise RetryableError("messages were lost between JetStream and the rebuild")
            await self._apply(messages, report)
            on_batch(report)

    async def _apply(self, messages: Sequence[Message], report: StreamRebuildReport) -> None:
        """Project a batch in one statement; log and skip messages that are invalid or that the database refuses."""
        relevant = [message for message in messages if message.stream_sequence <= report.last]
        events: list[tuple[int, Mapping[str, Any]]] = []
        for message in relevant:
            sequence = message.stream_sequence
            try:
                events.append((sequence, self._decode(message.data)))
            except RejectedError as error:
                _skip(report, sequence, error)
        if report.action is None:
            report.events += len(events)
        else:
            await asyncio.to_thread(self._project, events, report, report.action)
        report.reached = relevant[-1].stream_sequence if len(relevant) == len(messages) else report.last

    def _project(
        self, events: Sequence[tuple[int, Mapping[str, Any]]], report: StreamRebuildReport, action: OperatorAction
    ) -> None:
        refused: dict[int, RejectedError] = {}
        with self._database.session() as connection, connection.transaction():
            changed = _project_accepted(connection, events, refused)
            record_rebuild(connection, action, report.batches, changed)
        report.batches += 1
        report.changed += changed
        report.events += len(events) - len(refused)
        for sequence, error in refused.items():
            _skip(report, sequence, error)


def _project_accepted(
    tx: Connection, events: Sequence[tuple[int, Mapping[str, Any]]], refused: dict[int, RejectedError]
) -> int:
    """Project the events that the database accepts, add the others to `refused`, and return how many rows changed.

    If it refuses the batch, the events are projected one by one, in the order in which the bridge locks their rows.
    """
    try:
        with tx.transaction():
            return project(tx, [payload for _, payload in events])
    except RejectedError as error:
        if len(events) == 1:
            refused[events[0][0]] = error
            return 0
    ordered = sorted(events, key=lambda event: (event[1]["user_id"], event[1]["stock_keeping_unit"]))
    return sum(_project_accepted(tx, [event], refused) for event in ordered)


def _skip(report: StreamRebuildReport, sequence: int, error: RejectedError) -> None:
    logger.warning("message skipped in rebuild", stream_seq=sequence, reason=str(error))
    report.skipped += 1
