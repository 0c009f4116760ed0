"""Rebuild of the read model from the events that JetStream still has (P2).

The rebuild reads each message by its sequence, so it needs no consumer and no permission to create one (G10). It does
not touch the bridge's consumer, the inbox or notifications. It is safe at any time, because the projection ignores an
event that is not newer than the row. Like the bridge, it applies genuine events only (G1). Each batch is a transaction
with its row in `operator_actions`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import RejectedError, RetryableError
from grantwire.events.genuine import NOT_GENUINE, find_genuine, message_digest
from grantwire.jetstream.stream_state import read_messages
from grantwire.observability import logger
from grantwire.operator_actions import OperatorAction, record_rebuild
from grantwire.read_model.model import project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grantwire.database import Connection, Database
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.message import StoredMessage
    from grantwire.operator_actions import Operator
    from grantwire.workers.budget import Budget

_BATCH_SIZE = 1000


class _StreamEvent(NamedTuple):
    """An event of the stream: the sequence and the digest of its message, and its payload."""

    sequence: int
    payload: Mapping[str, Any]
    digest: bytes


@dataclass(slots=True)
class StreamRebuildReport:
    """The progress of a rebuild: the messages `first` to `reached` are done.

    `last` was the last sequence of the stream when the rebuild began. `skipped` includes `not_genuine`. `action` is
    None for a dry run, which is not recorded; otherwise `batches` rows have been recorded for it.
    """

    action: OperatorAction | None
    first: int
    last: int
    reached: int
    events: int = 0
    changed: int = 0
    skipped: int = 0
    not_genuine: int = 0
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
            "not_genuine": self.not_genuine,
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
        stored = await self._nats.sequences(self._stream)
        report = StreamRebuildReport(action, first, stored.stop - 1, max(first, stored.start) - 1)
        try:
            await self._read(report, budget, on_batch)
        except RetryableError as error:
            raise RetryableError(f"{error}; continue with from_sequence {report.reached + 1}") from error
        return report

    async def _read(
        self, report: StreamRebuildReport, budget: Budget, on_batch: Callable[[StreamRebuildReport], None]
    ) -> None:
        while not report.complete and not budget.is_over():
            last = min(report.reached + _BATCH_SIZE, report.last)
            sequences = range(report.reached + 1, last + 1)
            messages = await read_messages(self._nats, self._stream, sequences)
            present = {sequence: message for sequence, message in zip(sequences, messages, strict=True) if message}
            if present:
                await self._apply(present, report)
            else:  # they have left the stream, or there is no stream any more, which is an error
                last = max(last, (await self._nats.sequences(self._stream)).start - 1)
            report.reached = min(last, report.last)
            on_batch(report)

    async def _apply(self, messages: Mapping[int, StoredMessage], report: StreamRebuildReport) -> None:
        """Project a batch, messages by their sequences, in one statement.

        Messages that are invalid or not genuine, or that the database refuses, are logged and skipped.
        """
        events: list[_StreamEvent] = []
        for sequence, message in messages.items():
            try:
                events.append(_StreamEvent(sequence, self._decode(message.data), message_digest(message.data)))
            except RejectedError as error:
                _skip(report, sequence, str(error))
        genuine = await asyncio.to_thread(self._select_genuine, events, report)
        if report.action is None:
            report.events += len(genuine)
        else:
            await asyncio.to_thread(self._project, genuine, report, report.action)

    def _select_genuine(self, events: Sequence[_StreamEvent], report: StreamRebuildReport) -> list[_StreamEvent]:
        """Return the genuine events, and count the others as skipped."""
        with self._database.session() as connection:
            positions = find_genuine(
                connection, [event.payload for event in events], [event.digest for event in events]
            )
        for position, event in enumerate(events):
            if position not in positions:
                _skip(report, event.sequence, NOT_GENUINE)
                report.not_genuine += 1
        return [event for position, event in enumerate(events) if position in positions]

    def _project(self, events: Sequence[_StreamEvent], report: StreamRebuildReport, action: OperatorAction) -> None:
        refused: dict[int, RejectedError] = {}
        with self._database.session() as connection, connection.transaction():
            changed = _project_accepted(connection, events, refused)
            record_rebuild(connection, action, report.batches, changed)
        report.batches += 1
        report.changed += changed
        report.events += len(events) - len(refused)
        for sequence, error in refused.items():
            _skip(report, sequence, str(error))


def _project_accepted(tx: Connection, events: Sequence[_StreamEvent], refused: dict[int, RejectedError]) -> int:
    """Project the events that the database accepts, add the others to `refused`, and return how many rows changed.

    If it refuses the batch, the events are projected one by one, in the order in which the bridge locks their rows.
    """
    try:
        with tx.transaction():
            return project(tx, [event.payload for event in events])
    except RejectedError as error:
        if len(events) == 1:
            refused[events[0].sequence] = error
            return 0
    ordered = sorted(events, key=lambda event: (event.payload["user_id"], event.payload["stock_keeping_unit"]))
    return sum(_project_accepted(tx, [event], refused) for event in ordered)


def _skip(report: StreamRebuildReport, sequence: int, reason: str) -> None:
    logger.warning("message skipped in rebuild", stream_seq=sequence, reason=reason)
    report.skipped += 1
