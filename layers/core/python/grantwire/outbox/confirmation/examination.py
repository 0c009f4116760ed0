"""Finds out which published events are lost, and puts them back: those of lost ranges, and those that are listed."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from grantwire.jetstream.stream_state import advisories_are_recorded
from grantwire.outbox.confirmation import losses, store
from grantwire.outbox.confirmation.messages import find_lost

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from datetime import timedelta

    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.stream_state import StreamState
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation.messages import Item
    from grantwire.outbox.confirmation.putting_back import PuttingBack
    from grantwire.outbox.confirmation.store import Turn, UnconfirmedEvent
    from grantwire.outbox.connections import Connections

# Rows of one statement.
_SCAN_SIZE = 2000
_PAGE_SIZE = 1000
# Unfinished events that are listed. The mark waits while there are more.
_MAX_LISTED = 5000
# Events that seem to wait, of which the messages are read nevertheless in each turn.
_MAX_SAMPLES = 200


class Examination:
    """The examination of one relay. Its methods return early when the deadline of the turn has passed."""

    def __init__(
        self,
        connections: Connections,
        nats: NatsConnection,
        topology: TopologySettings,
        putting_back: PuttingBack,
        grace: timedelta,
    ) -> None:
        self._connections = connections
        self._nats = nats
        self._topology = topology
        self._putting_back = putting_back
        self._grace = grace

    async def examine_losses(self, turn: Turn, state: StreamState, counts: Counter[str], deadline: float) -> bool:
        """Put back the events of lost ranges; return whether the time of the turn ended before."""
        examined = 0
        while loss := await self._connections.run(partial(losses.find_open, after=examined)):
            page = await self._connections.run(partial(losses.read_page, loss=loss, limit=_PAGE_SIZE))
            lost = await self._find_lost(page.events, state)
            cause = "LOST" if loss.cause == "DELETED" else "RANGE_LOST"
            outcome = await self._putting_back.put_back(turn, lost, cause, counts, loss_id=loss.loss_id)
            if outcome.locked:
                page = page.repeated()
            sequences = [event.stream_sequence for event in lost if event.stream_sequence is not None]
            await self._connections.run(
                partial(
                    losses.advance,
                    turn=turn,
                    loss=loss,
                    page=page,
                    grace=self._grace,
                    sequences=sequences,
                    lost=len(lost) - outcome.locked,
                    republished=outcome.changed,
                )
            )
            if page.is_last or outcome.locked:
                examined = loss.loss_id
            if time.monotonic() > deadline:
                return True
        return False

    async def examine_listed(self, turn: Turn, state: StreamState, counts: Counter[str], deadline: float) -> bool:
        """Move the mark, and examine listed events; return whether the time of the turn ended before.

        The list is examined when the mark is at its end or has no room, because each examination writes to its rows.
        """
        samples = _MAX_SAMPLES
        while True:
            waiting = await self._connections.run(partial(store.count_waiting, limit=_MAX_LISTED))
            scan = await self._connections.run(
                partial(
                    store.scan,
                    turn=turn,
                    grace=self._grace,
                    limit=_SCAN_SIZE,
                    room=_MAX_LISTED - waiting,
                )
            )
            is_last_page = scan.read < _SCAN_SIZE or not scan.moved
            if not is_last_page and time.monotonic() <= deadline:
                continue
            examination = await self._connections.run(partial(store.examine, turn=turn, limit=_PAGE_SIZE))
            changed = await self._judge(turn, state, examination.waiting, counts, samples)
            samples = 0
            is_last_examination = examination.read < _PAGE_SIZE or changed + examination.removed < _PAGE_SIZE // 2
            if is_last_page and is_last_examination:
                return False
            if time.monotonic() > deadline:
                return True

    async def _judge(
        self,
        turn: Turn,
        state: StreamState,
        events: Sequence[UnconfirmedEvent],
        counts: Counter[str],
        samples: int,
    ) -> int:
        """Put back the listed events that are lost or will not be delivered; return how many.

        Of those that seem to wait, only as many messages are read as `samples`.
        """
        pending = [event.event_id for event in events if self._is_pending(event.stream_sequence, state)]
        skipped = set(pending[samples:])
        examined = [event for event in events if event.event_id not in skipped]
        lost = await self._find_lost(examined, state)
        changed = (await self._putting_back.put_back(turn, lost, "LOST", counts)).changed
        is_lost = {event.event_id for event in lost}
        passed = [
            event
            for event in examined
            if event.event_id not in is_lost and (event.stream_sequence or 0) <= state.passed
        ]
        if not passed:
            return changed
        ripe = [event for event in passed if event.passed_at and event.passed_at <= turn.now - self._grace]
        if ripe and await advisories_are_recorded(self._nats, self._topology):
            # The dead letters of these events are recorded now, if there are any: outbox_put_back looks for them.
            changed += (await self._putting_back.put_back(turn, ripe, "NOT_DELIVERED", counts)).changed
        new = [event.event_id for event in passed if event.passed_at is None]
        await self._connections.run(partial(store.mark_passed, turn=turn, event_ids=new))
        return changed

    @staticmethod
    def _is_pending(sequence: int | None, state: StreamState) -> bool:
        """Return whether the consumer will deliver the message with this sequence, whatever it is."""
        return sequence is not None and max(state.first_sequence, state.passed + 1) <= sequence <= state.last_sequence

    async def _find_lost(self, items: Sequence[Item], state: StreamState) -> list[Item]:
        return await find_lost(self._nats, self._topology.events.stream, items, state)
