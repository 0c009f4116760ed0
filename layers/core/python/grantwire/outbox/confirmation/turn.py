"""The check of one relay, and the turn that it needs for it."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from grantwire.errors import GrantwireError
from grantwire.jetstream.stream_state import read_stream_state
from grantwire.observability import logger
from grantwire.outbox.confirmation import store
from grantwire.outbox.confirmation.comparison import StreamComparison
from grantwire.outbox.confirmation.examination import Examination
from grantwire.outbox.confirmation.putting_back import PuttingBack

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.stream_state import StreamState
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation.settings import ConfirmationSettings
    from grantwire.outbox.confirmation.store import Turn
    from grantwire.outbox.connections import Connections

    Check = Callable[[Turn, StreamState, Counter[str]], Awaitable[None]]

# A turn ends after this time, and the next one continues, so that publishing goes on meanwhile.
_TURN_SECONDS = 1.0
_TURN_LEASE = timedelta(seconds=30)
# A relay that did not get the turn asks again after this part of the interval.
_RETRY_FRACTION = 0.25


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
        self._comparison = StreamComparison(connections, nats, topology)
        putting_back = PuttingBack(connections, topology, settings.backoff)
        self._examination = Examination(connections, nats, topology, putting_back, settings.grace)
        self._next_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask for the turn."""
        return time.monotonic() >= self._next_at

    async def run(self, counts: Counter[str]) -> bool:
        """Check, if no other relay does; return whether there is more to do at once.

        A failure is logged and the check is repeated later: publishing must not wait for it.
        """
        started_at = time.monotonic()
        self._next_at = started_at + self._settings.interval.total_seconds() * _RETRY_FRACTION
        completed = has_more = False
        token = f"{self._worker}/{uuid.uuid4()}"
        try:
            turn = await self._connections.run(self._begin(token))
            if turn is None:
                return False
            self._next_at = started_at + self._settings.interval.total_seconds()
            try:
                has_more = await self._check(turn, counts, started_at + _TURN_SECONDS)
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

    async def _check(self, turn: Turn, counts: Counter[str], deadline: float) -> bool:
        """Check once; return whether the time of the turn ended before the work did."""
        state = await read_stream_state(self._nats, self._topology)
        if state is None:
            return False  # the stream must exist: a deployment creates it
        counts["ranges_lost"] += await self._comparison.compare(turn, state)
        if await self._examination.examine_losses(turn, state, counts, deadline):
            return True
        for check in self._more:
            await check(turn, state, counts)
        return await self._examination.examine_listed(turn, state, counts, deadline)
