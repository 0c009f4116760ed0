"""A batch on its way to the stream: each aggregate a chain, all chains in flight together (O8)."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from grantwire.errors import GrantwireError, RetryableError
from grantwire.observability import log
from grantwire.outbox.encoding import encode_event, headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from grantwire.broker import Ack, Broker
    from grantwire.outbox.store import ClaimedEvent

# After so many the socket gets a turn: the server works on the first while the next are encoded.
_STRIDE = 64


class _Chain:
    """One aggregate's events; `place` is the one that is to be sent, or in flight, or has failed."""

    __slots__ = ("events", "failed", "place")

    def __init__(self, events: list[ClaimedEvent]) -> None:
        self.events = events
        self.place = 0
        self.failed = False


class Publication:
    """Publishes events that are sorted by aggregate and version.

    The next event of an aggregate is sent when the one before it is acknowledged, and not at all when that one failed.
    An event that was never sent because the connection is gone, or because of `stop`, has not failed: it is `untried`.
    """

    def __init__(self, broker: Broker, subject: str, events: Sequence[ClaimedEvent]) -> None:
        self.published: list[UUID] = []
        self.failed: list[tuple[ClaimedEvent, GrantwireError]] = []
        self._broker = broker
        self._subject = subject
        self._chains = [_Chain(list(run)) for _, run in groupby(events, key=lambda event: event.aggregate_key)]
        self._answers: deque[tuple[_Chain, asyncio.Future[Ack]]] = deque()
        self._news = asyncio.Event()
        self._in_flight = 0
        self._stopped = False
        self._halted = False

    async def run(self) -> None:
        """Return when every chain has come to its end, or on `halt`."""
        for number, chain in enumerate(self._chains, 1):
            await self._send(chain)
            if number % _STRIDE == 0:
                await asyncio.sleep(0)
        while self._in_flight and not self._halted:
            await self._news.wait()
            self._news.clear()
            while self._answers:
                await self._receive(*self._answers.popleft())

    def stop(self) -> None:
        """Send nothing more; what is in flight may still be acknowledged."""
        self._stopped = True

    def halt(self) -> None:
        """Wait no longer."""
        self._stopped = self._halted = True
        self._news.set()

    @property
    def untried(self) -> Iterator[UUID]:
        """What was neither published nor failed; after `halt`, also what was still in flight."""
        for chain in self._chains:
            for event in chain.events[chain.place + chain.failed :]:
                yield event.event_id

    async def _send(self, chain: _Chain) -> None:
        if self._stopped or not self._broker.is_connected:
            return
        event = chain.events[chain.place]
        try:
            payload = encode_event(event.payload)
            answer = await self._broker.send(self._subject, payload, headers_of(event))
        except GrantwireError as error:
            self._fail(chain, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it counts against this event and no other
            log.exception("an event could not be sent", event_id=str(event.event_id))
            self._fail(chain, RetryableError(f"unexpected: {error!r}"))
        else:
            self._in_flight += 1
            answer.add_done_callback(partial(self._note, chain))

    def _note(self, chain: _Chain, answer: asyncio.Future[Ack]) -> None:
        answer.exception()  # seen, even if nobody waits for it any more
        self._answers.append((chain, answer))
        self._news.set()

    async def _receive(self, chain: _Chain, answer: asyncio.Future[Ack]) -> None:
        self._in_flight -= 1
        error = answer.exception()
        if error is not None:
            self._fail(chain, error if isinstance(error, GrantwireError) else RetryableError(repr(error)))
            return
        # A duplicate is a success: an earlier try of this event was stored after all (O3).
        self.published.append(chain.events[chain.place].event_id)
        chain.place += 1
        if chain.place < len(chain.events):
            await self._send(chain)

    def _fail(self, chain: _Chain, error: GrantwireError) -> None:
        chain.failed = True
        self.failed.append((chain.events[chain.place], error))
