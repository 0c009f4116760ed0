"""A batch on its way to the stream: each aggregate a chain, all chains in flight together (O8)."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from grantwire.errors import GrantwireError, RetryableError
from grantwire.observability import logger
from grantwire.outbox.encoding import encode_event, headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grantwire.jetstream.publisher import Publisher, Result
    from grantwire.outbox.store import ClaimedEvent

# After this many messages the socket gets a turn: the server works on the first while the next are encoded.
_STRIDE = 64


class _Chain:
    """One aggregate's events; `position` is the one that is to be sent, is in flight, or has failed."""

    __slots__ = ("events", "failed", "position")

    def __init__(self, event: ClaimedEvent) -> None:
        self.events = [event]
        self.position = 0
        self.failed = False


def _chains(events: Sequence[ClaimedEvent]) -> Iterator[_Chain]:
    """One for each aggregate; the events are sorted by aggregate."""
    chain: _Chain | None = None
    for event in events:
        if chain is not None and chain.events[-1].aggregate_key == event.aggregate_key:
            chain.events.append(event)
            continue
        if chain is not None:
            yield chain
        chain = _Chain(event)
    if chain is not None:
        yield chain


class Publication:
    """Publishes events that are sorted by aggregate and version.

    The next event of an aggregate is sent when the one before it is acknowledged, and not at all when that one failed.
    An event that was never sent because the connection is gone, or because of `stop`, has not failed: it is `untried`.
    """

    def __init__(self, publisher: Publisher, subject: str, events: Sequence[ClaimedEvent]) -> None:
        self.published: list[str] = []
        self.failed: list[tuple[ClaimedEvent, GrantwireError]] = []
        self._publisher = publisher
        self._subject = subject
        self._chains = list(_chains(events))
        self._ready = deque(self._chains)
        self._changed = asyncio.Event()
        self._in_flight = 0
        self._stopped = False
        self._halted = False

    async def run(self) -> None:
        """Return when every chain has come to its end, or on `halt`."""
        sent = 0
        while not self._halted:
            while self._ready and not self._stopped and self._publisher.is_connected:
                await self._send(self._ready.popleft())
                sent += 1
                if sent % _STRIDE == 0:
                    await asyncio.sleep(0)
            if not self._in_flight:
                break
            self._changed.clear()
            await self._changed.wait()
        self._halted = True

    def stop(self) -> None:
        """Send nothing more; what is in flight may still be acknowledged."""
        self._stopped = True

    def halt(self) -> None:
        """Wait no longer, and ignore what is acknowledged from now on."""
        self._stopped = self._halted = True
        self._changed.set()

    @property
    def untried(self) -> Iterator[str]:
        """What was neither published nor failed; after `halt`, also what was still in flight."""
        for chain in self._chains:
            for event in chain.events[chain.position + chain.failed :]:
                yield event.event_id

    async def _send(self, chain: _Chain) -> None:
        event = chain.events[chain.position]
        self._in_flight += 1
        try:
            payload, headers = encode_event(event.payload), headers_of(event)
            await self._publisher.send(self._subject, payload, headers, partial(self._on_result, chain))
        except GrantwireError as error:
            self._on_result(chain, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it counts against this event and no other
            logger.exception("unexpected error publishing event", event_id=event.event_id)
            self._on_result(chain, RetryableError(f"unexpected: {error!r}"))

    def _on_result(self, chain: _Chain, result: Result) -> None:
        """Take a result; a duplicate is a success: an earlier try of this event was stored after all (O3)."""
        if self._halted:
            return
        self._in_flight -= 1
        if isinstance(result, GrantwireError):
            chain.failed = True
            self.failed.append((chain.events[chain.position], result))
        else:
            self.published.append(chain.events[chain.position].event_id)
            chain.position += 1
            if chain.position < len(chain.events):
                self._ready.append(chain)
        if self._ready or not self._in_flight:
            self._changed.set()
