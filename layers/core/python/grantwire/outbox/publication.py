"""Publishes one batch of events: aggregates in parallel, the events of one aggregate in order (O8)."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from grantwire.errors import GrantwireError, RetryableError
from grantwire.events.encoding import encode_event
from grantwire.observability import logger
from grantwire.outbox.headers import build_headers
from grantwire.workers.leases import Completion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grantwire.jetstream.publisher import Publisher, Result
    from grantwire.outbox.store import ClaimedEvent

# Yield to the event loop after this many messages, so that the server can store the first messages while the next ones
# are encoded.
_MESSAGES_PER_TURN = 64


class _AggregateRun:
    """The claimed events of one aggregate, in version order.

    `position` is the index of the current event: the one to send next, in flight, or failed.
    """

    __slots__ = ("events", "failed", "position")

    def __init__(self, event: ClaimedEvent) -> None:
        self.events = [event]
        self.position = 0
        self.failed = False

    @property
    def current(self) -> ClaimedEvent:
        """The event to send next, in flight, or failed."""
        return self.events[self.position]


def _group_by_aggregate(events: Sequence[ClaimedEvent]) -> list[_AggregateRun]:
    """Group events, which must be sorted by aggregate, into one run for each aggregate."""
    runs: list[_AggregateRun] = []
    for event in events:
        if runs and runs[-1].events[-1].aggregate_key == event.aggregate_key:
            runs[-1].events.append(event)
        else:
            runs.append(_AggregateRun(event))
    return runs


class BatchPublication:
    """Publishes a batch of events that is sorted by aggregate and version.

    An event is sent after its predecessor in the aggregate was acknowledged. If an event fails, its successors are not
    sent. An event that was not sent, because the connection was lost or sending was stopped, has not failed: it is
    `unresolved`.
    """

    def __init__(self, publisher: Publisher, subject: str, events: Sequence[ClaimedEvent]) -> None:
        self.published: list[Completion] = []
        self.failed: list[tuple[ClaimedEvent, GrantwireError]] = []
        self._publisher = publisher
        self._subject = subject
        self._runs = _group_by_aggregate(events)
        self._ready = deque(self._runs)
        self._progress = asyncio.Event()
        self._in_flight = 0
        self._sending_stopped = False
        self._ended = False

    async def run(self) -> None:
        """Publish until no event can be sent and none is in flight, or until `abort`."""
        sent = 0
        while not self._ended:
            while self._ready and not self._sending_stopped and self._publisher.is_connected:
                await self._send(self._ready.popleft())
                sent += 1
                if sent % _MESSAGES_PER_TURN == 0:
                    await asyncio.sleep(0)
            if not self._in_flight:
                break
            self._progress.clear()
            await self._progress.wait()
        self._ended = True

    def stop_sending(self) -> None:
        """Send no further events; wait only for the events in flight."""
        self._sending_stopped = True

    def abort(self) -> None:
        """End `run` immediately and ignore later acknowledgements."""
        self._sending_stopped = self._ended = True
        self._progress.set()

    @property
    def unresolved(self) -> Iterator[str]:
        """Ids of events that were neither published nor failed; after `abort` this includes events in flight."""
        for run in self._runs:
            for event in run.events[run.position + run.failed :]:
                yield event.event_id

    async def _send(self, run: _AggregateRun) -> None:
        event = run.current
        self._in_flight += 1
        try:
            payload, headers = encode_event(event.payload), build_headers(event)
            await self._publisher.send(self._subject, payload, headers, partial(self._on_result, run))
        except GrantwireError as error:
            self._on_result(run, error)
        except Exception as error:  # noqa: BLE001 - a bug that one event triggers must fail only this event
            logger.exception("unexpected error publishing event", event_id=event.event_id)
            self._on_result(run, RetryableError(f"unexpected: {error!r}"))

    def _on_result(self, run: _AggregateRun, result: Result) -> None:
        """Record the result of the run's current event and make its successor ready to send.

        A duplicate counts as published: an earlier attempt to send this event was stored after all (O3).
        """
        if self._ended:
            return
        self._in_flight -= 1
        if isinstance(result, GrantwireError):
            run.failed = True
            self.failed.append((run.current, result))
        else:
            self.published.append(Completion(run.current.event_id, result.sequence))
            run.position += 1
            if run.position < len(run.events):
                self._ready.append(run)
        if self._ready or not self._in_flight:
            self._progress.set()
