"""Compares the stream with the last check, and records what it lost since then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from grantwire.observability import logger
from grantwire.outbox.confirmation import losses, store
from grantwire.outbox.confirmation.losses import Loss
from grantwire.outbox.confirmation.messages import find_lost

if TYPE_CHECKING:
    from grantwire.database import Connection
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.stream_state import StreamState
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation.store import PublishedEvent, Turn
    from grantwire.outbox.connections import Connections

_MAX_RECENT = 200_000
# How exactly the time of a cut is searched for, and how much earlier the examination begins.
_CUT_RESOLUTION = timedelta(seconds=1)
_CUT_MARGIN = timedelta(seconds=10)
# Batches that relays publish at the same time are written in any order.
_BATCH_MARGIN = timedelta(seconds=2)
# A message may leave the stream this long before it is as old as the stream's max_age.
_AGE_MARGIN = timedelta(minutes=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class StreamComparison:
    """The comparison of one relay, which remembers the server that it talked to."""

    def __init__(self, connections: Connections, nats: NatsConnection, topology: TopologySettings) -> None:
        self._connections = connections
        self._nats = nats
        self._stream = topology.events.stream
        # The connection and the leader of the stream at the last check. A cut needs a restart or another leader.
        self._server: tuple[object, str | None] | None = None

    async def compare(self, turn: Turn, state: StreamState) -> int:
        """Record what the stream lost since the last check, and remember what it looks like now.

        Return how many ranges it lost; single messages are none.
        """
        found, newest = await self._find_losses(turn, state)

        def write(tx: Connection) -> None:
            with tx.transaction():
                for loss in found:
                    losses.record(tx, turn, self._stream, loss)
                store.remember(tx, turn, self._stream, state, newest, lost=bool(found))

        await self._connections.run(write)
        self._server = (self._nats.client, state.leader)
        for loss in found:
            logger.error(
                "stream lost messages",
                stream=self._stream,
                cause=loss.cause,
                first_sequence=loss.first_sequence,
                last_sequence=loss.last_sequence,
            )
        return sum(loss.cause != "DELETED" for loss in found)

    async def _find_losses(self, turn: Turn, state: StreamState) -> tuple[list[Loss], PublishedEvent | None]:
        """Return the losses since the last check, and an event by which the next check recognises a cut."""
        not_aged = _BEGINNING if state.max_age is None else turn.now - state.max_age + _AGE_MARGIN
        if turn.stream != self._stream:
            return [], None
        if turn.stream_created_at != state.created_at:
            return [Loss("RECREATED", turn.first_sequence, turn.last_sequence, not_aged)], None
        since = max(not_aged, turn.generation_since or _BEGINNING)
        found = []
        cut, newest = await self._find_cut(turn, state, since)
        if cut is not None:
            found.append(cut)
        first, known = state.first_sequence, turn.first_sequence or 0
        if first > known and not state.is_limited and cut is None:
            lowest, _ = await self._connections.run(partial(losses.find_oldest, after=since))
            if lowest is not None and lowest < first:
                found.append(Loss("PURGED", known, first - 1, since, examine_below=first))
        if state.deleted_messages > (turn.deleted_messages or 0) and not found:
            found.append(Loss("DELETED", None, None, None))
        return found, newest

    async def _find_cut(
        self, turn: Turn, state: StreamState, since: datetime
    ) -> tuple[Loss | None, PublishedEvent | None]:
        """Return the loss if the stream was cut back, or else an event that it has.

        A restored older copy of its files has the same time of creation, and uses sequences again.
        """
        newest = None
        for event in filter(None, (turn.newest, turn.latest)):
            sequence = event.stream_sequence
            if sequence is None or sequence < state.first_sequence:
                continue
            is_beyond = sequence > state.last_sequence
            message = None if is_beyond else await self._nats.get_message(self._stream, sequence)
            if message is not None and message.headers.get("event_id") == event.event_id:
                newest = event
            elif is_beyond or message is not None:
                return Loss("CUT", None, None, await self._locate_cut(state, since, event.published_at)), None
        if turn.latest not in {None, turn.newest} and self._server != (self._nats.client, state.leader):
            recent = turn.newest.published_at - _BATCH_MARGIN if turn.newest else _BEGINNING
            after = max(since, turn.losses_until or _BEGINNING, recent)
            find = partial(losses.find_reused, after=after, until=turn.now, limit=_MAX_RECENT)
            reused_at = await self._connections.run(find)
            if reused_at is not None:
                return Loss("CUT", None, None, await self._locate_cut(state, since, reused_at)), None
        return None, newest

    async def _locate_cut(self, state: StreamState, since: datetime, lost_at: datetime) -> datetime:
        """Return a time shortly before the first lost event was published, by bisection."""
        _, first = await self._connections.run(partial(losses.find_oldest, after=since))
        low, high = min(first or since, lost_at) - _CUT_RESOLUTION, lost_at
        while high - low > _CUT_RESOLUTION:
            middle = low + (high - low) / 2
            event = await self._connections.run(partial(losses.find_last_published, after=low, until=middle))
            if event is None or not await find_lost(self._nats, self._stream, [event], state, aged=False):
                low = middle
            else:
                high = min(event.published_at, middle)
        return low - _CUT_MARGIN
