"""Rebuild of the read model from the events that JetStream still has (P2).

The rebuild reads each message by its sequence, so it needs no consumer and no permission to create one (G10). It does
not touch the bridge's consumer, the inbox or notifications. It is safe at any time, because the projection ignores an
event that is not newer than the row. Like the bridge, it applies genuine events only (G1).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import RejectedError
from grantwire.events.decoding import decode_payload
from grantwire.events.genuine import NOT_GENUINE, find_genuine, message_digest
from grantwire.jetstream.stream_state import read_messages
from grantwire.observability import logger
from grantwire.read_model.model import project

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from grantwire.database import Connection
    from grantwire.jetstream.connection import NatsConnection

_BATCH_SIZE = 1000


class StreamEvent(NamedTuple):
    """An event of the stream: the sequence and the digest of its message, and its payload."""

    sequence: int
    payload: Mapping[str, Any]
    digest: bytes


@dataclass(slots=True)
class StreamRebuildReport:
    """The progress of a rebuild: the messages `from_sequence` to `reached` are done.

    `last_sequence` was the last one of the stream when the rebuild began; later events are left to the bridge.
    `skipped` includes `not_genuine`.
    """

    from_sequence: int
    last_sequence: int
    reached: int
    events: int = 0
    changed: int = 0
    skipped: int = 0
    not_genuine: int = 0
    source: str = "stream"

    @property
    def complete(self) -> bool:
        """Whether the rebuild has reached the last message."""
        return self.reached >= self.last_sequence

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of the result, from which the next batch continues."""
        return asdict(self) | {"complete": self.complete}

    @classmethod
    def from_dict(cls, result: Mapping[str, Any]) -> StreamRebuildReport:
        """Return the report that `as_dict` described."""
        return cls(**{name: value for name, value in result.items() if name != "complete"})

    def skip(self, sequence: int, reason: str) -> None:
        """Log and count a message that is not projected."""
        logger.warning("message skipped in rebuild", stream_seq=sequence, reason=reason)
        self.skipped += 1


class EventStream:
    """The stream of events, read on the event loop of the runner."""

    def __init__(self, nats: NatsConnection, name: str, runner: asyncio.Runner) -> None:
        self._nats = nats
        self.name = name
        self._runner = runner

    def begin(self, first: int) -> StreamRebuildReport:
        """Return the report of a rebuild that has read nothing; raises RetryableError if there is no such stream."""
        self._runner.run(self._nats.connect())
        stored = self._runner.run(self._nats.sequences(self.name))
        return StreamRebuildReport(first, stored.stop - 1, max(first, stored.start) - 1)

    def read(self, report: StreamRebuildReport) -> list[StreamEvent]:
        """Return the next events and move the report to them; messages that are no events are skipped."""
        self._runner.run(self._nats.connect())
        sequences = range(report.reached + 1, min(report.reached + _BATCH_SIZE, report.last_sequence) + 1)
        messages = self._runner.run(read_messages(self._nats, self.name, sequences))
        report.reached = sequences.stop - 1
        if not any(messages):  # they have left the stream, or there is no stream any more, which is an error
            stored = self._runner.run(self._nats.sequences(self.name))
            report.reached = min(max(report.reached, stored.start - 1), report.last_sequence)
        events = []
        for sequence, message in zip(sequences, messages, strict=True):
            if message is not None:
                try:
                    payload = decode_payload(message.data)
                except RejectedError as error:
                    report.skip(sequence, str(error))
                else:
                    events.append(StreamEvent(sequence, payload, message_digest(message.data)))
        return events


def project_events(tx: Connection, events: Sequence[StreamEvent], report: StreamRebuildReport) -> int:
    """Project a batch, add it to the report, and return how many rows changed.

    Events that are not genuine, or that the database refuses, are skipped.
    """
    genuine = find_genuine(tx, [event.payload for event in events], [event.digest for event in events])
    for position, event in enumerate(events):
        if position not in genuine:
            report.skip(event.sequence, NOT_GENUINE)
            report.not_genuine += 1
    refused: dict[int, RejectedError] = {}
    accepted = [event for position, event in enumerate(events) if position in genuine]
    changed = _project_accepted(tx, accepted, refused)
    for sequence, error in refused.items():
        report.skip(sequence, str(error))
    report.events += len(accepted) - len(refused)
    report.changed += changed
    return changed


def _project_accepted(tx: Connection, events: Sequence[StreamEvent], refused: dict[int, RejectedError]) -> int:
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
