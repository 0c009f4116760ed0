"""A batch on its way to the stream: each aggregate a chain, all chains in flight together (O8)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from grantwire.errors import GrantwireError, RetryableError
from grantwire.observability import log
from grantwire.outbox.encoding import encode_event, headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grantwire.jetstream import Broker
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


def _chains(events: Sequence[ClaimedEvent]) -> list[_Chain]:
    """One for each aggregate."""
    chains: list[_Chain] = []
    key = None
    for event in events:
        if event.aggregate_key == key:
            chains[-1].events.append(event)
        else:
            chains.append(_Chain([event]))
            key = event.aggregate_key
    return chains


class Publication:
    """Publishes events that are sorted by aggregate and version.

    The next event of an aggregate is sent when the one before it is acknowledged, and not at all when that one failed.
    An event that was never sent because the connection is gone, or because of `stop`, has not failed: it is `untried`.
    """

    def __init__(self, broker: Broker, subject: str, events: Sequence[ClaimedEvent]) -> None:
        self.published: list[str] = []
        self.failed: list[tuple[ClaimedEvent, GrantwireError]] = []
        self._broker = broker
        self._subject = subject.encode()
        self._chains = _chains(events)
        self._done = asyncio.Event()
        self._in_flight = 0
        self._stopped = False
        self._halted = False

    async def run(self) -> None:
        """Return when every chain has come to its end, or on `halt`."""
        for number, chain in enumerate(self._chains, 1):
            self._post(chain)
            if number % _STRIDE == 0:
                self._push()
                await asyncio.sleep(0)
        self._push()
        while self._in_flight and not self._halted:
            self._done.clear()
            await self._done.wait()
        self._halted = True

    def stop(self) -> None:
        """Send nothing more; what is in flight may still be acknowledged."""
        self._stopped = True

    def halt(self) -> None:
        """Wait no longer, and take no notice of what is acknowledged from now on."""
        self._stopped = self._halted = True
        self._done.set()

    @property
    def untried(self) -> Iterator[str]:
        """What was neither published nor failed; after `halt`, also what was still in flight."""
        for chain in self._chains:
            for event in chain.events[chain.place + chain.failed :]:
                yield event.event_id

    def _post(self, chain: _Chain) -> None:
        if self._stopped or not self._broker.is_connected:
            return
        event = chain.events[chain.place]
        try:
            payload, headers = encode_event(event.payload), headers_of(event)
            self._broker.post(self._subject, payload, headers, partial(self._answered, chain))
        except GrantwireError as error:
            self._fail(chain, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it counts against this event and no other
            log.exception("an event could not be sent", event_id=event.event_id)
            self._fail(chain, RetryableError(f"unexpected: {error!r}"))
        else:
            self._in_flight += 1

    def _push(self) -> None:
        """What cannot be written now is answered all the same: the connection ends, and with it every wait."""
        try:
            self._broker.push()
        except RetryableError as error:
            log.warning("events were not sent", reason=str(error))

    def _answered(self, chain: _Chain, error: GrantwireError | None, _acknowledgement: bytes) -> None:
        """A duplicate is a success: an earlier try of this event was stored after all (O3)."""
        if self._halted:
            return
        self._in_flight -= 1
        if error is not None:
            self._fail(chain, error)
        else:
            self.published.append(chain.events[chain.place].event_id)
            chain.place += 1
            if chain.place < len(chain.events):
                self._post(chain)
                self._push()
        if not self._in_flight:
            self._done.set()

    def _fail(self, chain: _Chain, error: GrantwireError) -> None:
        chain.failed = True
        self.failed.append((chain.events[chain.place], error))
