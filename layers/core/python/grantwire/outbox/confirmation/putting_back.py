"""Puts lost events back, so that a relay publishes them again."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from grantwire.observability import logger
from grantwire.outbox.confirmation import store

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from datetime import datetime

    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation.messages import Located
    from grantwire.outbox.confirmation.store import Turn
    from grantwire.outbox.connections import Connections

# Events of one transaction, which locks their entitlements: as many as a batch of changes has.
_BATCH_SIZE = 100
# The inbox is swept once an hour or so. An event this much younger than its retention is certainly known.
_RETENTION_MARGIN = timedelta(days=1)


def oldest_republished(turn: Turn, topology: TopologySettings) -> datetime:
    """Return the time of the oldest events that the inbox certainly remembers."""
    return turn.now - timedelta(days=topology.retention_days) + _RETENTION_MARGIN


class Outcome(NamedTuple):
    """How many events were put back or are too old for that, and how many are still lost because they are locked."""

    changed: int
    locked: int


class PuttingBack:
    """Puts events back, and counts and logs them."""

    def __init__(self, connections: Connections, topology: TopologySettings, backoff: timedelta) -> None:
        self._connections = connections
        self._topology = topology
        self._backoff = backoff

    async def put_back(
        self,
        turn: Turn,
        events: Sequence[Located],
        cause: str,
        counts: Counter[str],
        *,
        loss_id: int | None = None,
    ) -> Outcome:
        """Put events back, in batches, in their order.

        A batch is left out if another transaction holds one of its entitlements for long.
        """
        put_back = too_old = locked = 0
        for start in range(0, len(events), _BATCH_SIZE):
            batch = events[start : start + _BATCH_SIZE]
            action = partial(
                store.put_back,
                events=[(event.event_id, event.stream_sequence) for event in batch],
                cause=cause,
                oldest=oldest_republished(turn, self._topology),
                backoff=self._backoff,
                now=turn.now,
                loss_id=loss_id,
                arrived=cause == "RANGE_LOST",
            )
            result = await self._connections.run(action)
            if result is None:
                locked += len(batch)
            else:
                put_back += result.put_back
                too_old += result.too_old
        counts["lost"] += put_back + too_old
        counts["put_back"] += put_back
        counts["too_old"] += too_old
        if put_back:
            logger.error("events put back, publishing again", cause=cause, count=put_back, loss_id=loss_id)
        if too_old:
            logger.error("lost events too old to publish again", count=too_old)
        if locked:
            logger.warning("entitlements locked, putting events back later", cause=cause, count=locked)
        return Outcome(put_back + too_old, locked)
