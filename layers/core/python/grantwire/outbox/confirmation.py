"""Confirms published events by the inbox, and puts back what the stream lost (W1, ADR 0045).

JetStream acknowledges a message before it is on disk, so that an acknowledgement proves nothing, and neither does the
acknowledgement floor of the consumer. An event is finished when the inbox has it, or a dead letter of it exists. One
relay at a time checks the others, at an interval:

1. It compares the stream with the last check: was it created again, cut back, purged, or were messages deleted?
   A lost range is recorded, and all its events are published again, because outside readers lost them, too.
2. A mark moves over the published events that are older than the grace. Unfinished ones are listed.
3. Each listed event is waiting, or its message is not in the stream, or its consumer will not deliver it again. In the
   last two cases it is put back: published again, under a new Nats-Msg-Id.

The grace must exceed the longest transaction of a relay: an event that commits behind the mark would never be seen.
The state of the stream is read before the inbox: the bridge commits before it acknowledges.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from grantwire.errors import GrantwireError
from grantwire.jetstream.stream_state import advisories_are_recorded, read_messages, read_stream_state
from grantwire.observability import logger
from grantwire.outbox import confirmation_store as store
from grantwire.outbox import losses
from grantwire.outbox.losses import Loss
from grantwire.settings import duration, setting

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from grantwire.database import Connection
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.stream_state import StreamState
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation_store import PublishedEvent, Turn, UnconfirmedEvent
    from grantwire.outbox.connections import Connections

    Check = Callable[[Turn, StreamState, Counter[str]], Awaitable[None]]

# Rows of one statement.
_SCAN_SIZE = 2000
_PAGE_SIZE = 1000
# Unfinished events that are listed. The mark waits while there are more.
_MAX_LISTED = 5000
# Events that seem to wait, of which the messages are read nevertheless in each turn.
_MAX_SAMPLES = 200
# A turn ends after this time, and the next one continues, so that publishing goes on meanwhile.
_TURN_SECONDS = 1.0
_TURN_LEASE = timedelta(seconds=30)
# A relay that did not get the turn asks again after this part of the interval.
_RETRY_FRACTION = 0.25
_MAX_RECENT = 200_000
# How exactly the time of a cut is searched for, and how much earlier the examination begins.
_CUT_RESOLUTION = timedelta(seconds=1)
_CUT_MARGIN = timedelta(seconds=10)
# Batches that relays publish at the same time are written in any order.
_BATCH_MARGIN = timedelta(seconds=2)
# A message may leave the stream this long before it is as old as the stream's max_age.
_AGE_MARGIN = timedelta(minutes=1)
# The inbox is swept once an hour or so. An event this much younger than its retention is certainly known.
_RETENTION_MARGIN = timedelta(days=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ConfirmationSettings:
    """How often published events are compared with the inbox, and how old they are then."""

    interval: timedelta = setting(
        "ENTITLEMENT_OUTBOX_CONFIRM_INTERVAL", duration(low="100ms", high="30s"), default="10s"
    )
    grace: timedelta = setting("ENTITLEMENT_OUTBOX_CONFIRM_GRACE", duration(low="100ms", high="1h"), default="15s")
    backoff: timedelta = setting("ENTITLEMENT_OUTBOX_CONFIRM_BACKOFF", duration(low="1s", high="10m"), default="30s")

    def problems(self) -> Iterator[str]:
        """Yield a problem if the clock could step back unnoticed between two checks."""
        if self.interval >= self.grace:
            yield "ENTITLEMENT_OUTBOX_CONFIRM_GRACE must exceed ENTITLEMENT_OUTBOX_CONFIRM_INTERVAL"


class Located(Protocol):
    """Something that was published as an event, and where its message should be."""

    @property
    def event_id(self) -> str:
        """The id of the event."""

    @property
    def stream_sequence(self) -> int | None:
        """The sequence of its message, if it is known."""


Item = TypeVar("Item", bound=Located)


async def find_lost(
    nats: NatsConnection, stream: str, items: Sequence[Item], state: StreamState, *, aged: bool = True
) -> list[Item]:
    """Return those whose message is not in the stream; without `aged`, not those before its first message."""
    inside = []
    lost = set()
    for position, item in enumerate(items):
        sequence = item.stream_sequence
        if sequence is not None and state.first_sequence <= sequence <= state.last_sequence:
            inside.append((position, sequence))
        elif aged or sequence is None or sequence > state.last_sequence:
            lost.add(position)
    messages = await read_messages(nats, stream, [sequence for _, sequence in inside])
    for (position, _), message in zip(inside, messages, strict=True):
        if message is None or message.headers.get("event_id") != items[position].event_id:
            lost.add(position)
    return [item for position, item in enumerate(items) if position in lost]


def oldest_republished(turn: Turn, topology: TopologySettings) -> datetime:
    """Return the time of the oldest events that the inbox certainly remembers."""
    return turn.now - timedelta(days=topology.retention_days) + _RETENTION_MARGIN


class Confirmation:
    """The check of one relay. It belongs to one event loop; `counts` are those of the relay.

    `more` are checks of other things that were published, made in the same turn.
    """

    def __init__(  # noqa: PLR0913 - its dependencies, passed by name
        self,
        connections: Connections,
        nats: NatsConnection,
        topology: TopologySettings,
        settings: ConfirmationSettings,
        *,
        worker: str,
        more: Sequence[Check] = (),
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._nats = nats
        self._topology = topology
        self._settings = settings
        self._worker = worker
        self._more = more
        self._clock = clock
        self._next_at = 0.0
        self._deadline = 0.0
        # The connection and the leader of the stream at the last check. A cut needs a restart or another leader.
        self._server: tuple[object, str | None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask for the turn."""
        return time.monotonic() >= self._next_at

    async def run(self, counts: Counter[str]) -> bool:
        """Check, if no other relay does; return whether there is more to do at once.

        A failure is logged and the check is repeated later: publishing must not wait for it.
        """
        started_at = time.monotonic()
        self._deadline = started_at + _TURN_SECONDS
        self._next_at = started_at + self._settings.interval.total_seconds() * _RETRY_FRACTION
        completed = has_more = False
        token = f"{self._worker}/{uuid.uuid4()}"
        try:
            turn = await self._connections.run(self._begin(token))
            if turn is None:
                return False
            self._next_at = started_at + self._settings.interval.total_seconds()
            try:
                has_more = await self._check(turn, counts)
                completed = True
            finally:
                end = partial(store.end, token=token, completed=completed, has_more=has_more)
                await self._connections.run(end)
        except GrantwireError as error:
            logger.warning("could not check published events, retrying", reason=str(error))
        except Exception:  # noqa: BLE001 - a bug in the check must not stop publishing
            logger.exception("unexpected error checking published events")
        if has_more:
            self._next_at = 0.0
        return has_more

    def _begin(self, token: str) -> Callable[[Connection], Turn | None]:
        return partial(
            store.begin,
            token=token,
            interval=self._settings.interval,
            grace=self._settings.grace,
            lease=_TURN_LEASE,
            now=self._clock(),
        )

    async def _check(self, turn: Turn, counts: Counter[str]) -> bool:
        """Check once; return whether the time of the turn ended before the work did."""
        state = await read_stream_state(self._nats, self._topology)
        if state is None:
            return False  # the stream must exist: a deployment creates it
        counts["ranges_lost"] += await self._compare(turn, state)
        if await self._examine_losses(turn, state, counts):
            return True
        for check in self._more:
            await check(turn, state, counts)
        return await self._confirm(turn, state, counts)

    async def _compare(self, turn: Turn, state: StreamState) -> int:
        """Record what the stream lost since the last check, and remember what it looks like now.

        Return how many ranges it lost; single messages are none.
        """
        stream = self._topology.events.stream
        found, newest = await self._find_losses(turn, state)

        def write(tx: Connection) -> None:
            with tx.transaction():
                for loss in found:
                    losses.record(tx, turn, stream, loss)
                store.remember(tx, turn, stream, state, newest, lost=bool(found))

        await self._connections.run(write)
        self._server = (self._nats.client, state.leader)
        for loss in found:
            logger.error(
                "stream lost messages",
                stream=stream,
                cause=loss.cause,
                first_sequence=loss.first_sequence,
                last_sequence=loss.last_sequence,
            )
        return sum(loss.cause != "DELETED" for loss in found)

    async def _find_losses(self, turn: Turn, state: StreamState) -> tuple[list[Loss], PublishedEvent | None]:
        """Return the losses since the last check, and an event by which the next check recognises a cut."""
        not_aged = _BEGINNING if state.max_age is None else turn.now - state.max_age + _AGE_MARGIN
        if turn.stream != self._topology.events.stream:
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
            message = None if is_beyond else await self._nats.get_message(self._topology.events.stream, sequence)
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
            if event is None or not await self._find_lost([event], state, aged=False):
                low = middle
            else:
                high = min(event.published_at, middle)
        return low - _CUT_MARGIN

    async def _examine_losses(self, turn: Turn, state: StreamState, counts: Counter[str]) -> bool:
        """Put back the events of lost ranges; return whether the time of the turn ended before."""
        examined = 0
        while loss := await self._connections.run(partial(losses.find_open, after=examined)):
            page = await self._connections.run(partial(losses.read_page, loss=loss, limit=_PAGE_SIZE))
            lost = await self._find_lost(page.events, state)
            cause = "LOST" if loss.cause == "DELETED" else "RANGE_LOST"
            republished = await self._put_back(turn, lost, cause, counts, loss_id=loss.loss_id)
            sequences = [event.stream_sequence for event in lost if event.stream_sequence is not None]
            await self._connections.run(
                partial(
                    losses.advance,
                    turn=turn,
                    loss=loss,
                    page=page,
                    grace=self._settings.grace,
                    sequences=sequences,
                    lost=len(lost),
                    republished=republished,
                )
            )
            if page.is_last:
                examined = loss.loss_id
            if time.monotonic() > self._deadline:
                return True
        return False

    async def _confirm(self, turn: Turn, state: StreamState, counts: Counter[str]) -> bool:
        """Move the mark, and examine listed events; return whether the time of the turn ended before."""
        while True:
            waiting = await self._connections.run(partial(store.count_waiting, limit=_MAX_LISTED))
            scan = await self._connections.run(
                partial(
                    store.scan,
                    turn=turn,
                    grace=self._settings.grace,
                    limit=_SCAN_SIZE,
                    room=_MAX_LISTED - waiting,
                )
            )
            examination = await self._connections.run(partial(store.examine, turn=turn, limit=_PAGE_SIZE))
            changed = await self._judge(turn, state, examination.waiting, counts)
            is_last_page = scan.read < _SCAN_SIZE or not scan.moved
            is_last_examination = examination.read < _PAGE_SIZE or changed + examination.removed < _PAGE_SIZE // 2
            if is_last_page and is_last_examination:
                return False
            if time.monotonic() > self._deadline:
                return True

    async def _judge(
        self, turn: Turn, state: StreamState, events: Sequence[UnconfirmedEvent], counts: Counter[str]
    ) -> int:
        """Put back the listed events that are lost or will not be delivered; return how many."""
        pending = [event.event_id for event in events if self._is_pending(event.stream_sequence, state)]
        skipped = set(pending[_MAX_SAMPLES:])
        examined = [event for event in events if event.event_id not in skipped]
        lost = await self._find_lost(examined, state)
        changed = await self._put_back(turn, lost, "LOST", counts)
        is_lost = {event.event_id for event in lost}
        passed = [
            event
            for event in examined
            if event.event_id not in is_lost and (event.stream_sequence or 0) <= state.passed
        ]
        if not passed:
            return changed
        ripe = [event for event in passed if event.passed_at and event.passed_at <= turn.now - self._settings.grace]
        if ripe and await advisories_are_recorded(self._nats, self._topology):
            # The dead letters of these events are recorded now, if there are any: outbox_put_back looks for them.
            changed += await self._put_back(turn, ripe, "NOT_DELIVERED", counts)
        new = [event.event_id for event in passed if event.passed_at is None]
        await self._connections.run(partial(store.mark_passed, turn=turn, event_ids=new))
        return changed

    @staticmethod
    def _is_pending(sequence: int | None, state: StreamState) -> bool:
        """Return whether the consumer will deliver the message with this sequence, whatever it is."""
        return sequence is not None and max(state.first_sequence, state.passed + 1) <= sequence <= state.last_sequence

    async def _find_lost(self, items: Sequence[Item], state: StreamState, *, aged: bool = True) -> list[Item]:
        return await find_lost(self._nats, self._topology.events.stream, items, state, aged=aged)

    async def _put_back(
        self,
        turn: Turn,
        events: Sequence[Located],
        cause: str,
        counts: Counter[str],
        *,
        loss_id: int | None = None,
    ) -> int:
        """Put events back, count and log them, and return how many were put back."""
        if not events:
            return 0
        result = await self._connections.run(
            partial(
                store.put_back,
                events=[(event.event_id, event.stream_sequence) for event in events],
                cause=cause,
                oldest=oldest_republished(turn, self._topology),
                backoff=self._settings.backoff,
                now=turn.now,
                loss_id=loss_id,
                arrived=cause == "RANGE_LOST",
            )
        )
        counts["lost"] += result.put_back + result.too_old
        counts["put_back"] += result.put_back
        counts["too_old"] += result.too_old
        if result.put_back:
            logger.error("events put back, publishing again", cause=cause, count=result.put_back, loss_id=loss_id)
        if result.too_old:
            logger.error("lost events too old to publish again", count=result.too_old)
        return result.put_back + result.too_old
