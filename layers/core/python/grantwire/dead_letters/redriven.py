"""Confirms redriven dead letters by the inbox, and redrives those again whose copy the stream lost (W1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from grantwire.dead_letters import redriven_store as store
from grantwire.dead_letters.republish import publish_redrives
from grantwire.jetstream.stream_state import advisories_are_recorded
from grantwire.observability import logger
from grantwire.outbox.confirmation.messages import find_lost
from grantwire.outbox.confirmation.putting_back import oldest_republished

if TYPE_CHECKING:
    from collections import Counter
    from datetime import timedelta

    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.publisher import Publisher
    from grantwire.jetstream.stream_state import StreamState
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation.store import Turn
    from grantwire.outbox.connections import Connections

_BATCH_SIZE = 500


class RedriveConfirmation:
    """A part of the confirmation of one relay; it uses the relay's connections."""

    def __init__(
        self,
        connections: Connections,
        nats: NatsConnection,
        publisher: Publisher,
        topology: TopologySettings,
        grace: timedelta,
    ) -> None:
        self._connections = connections
        self._nats = nats
        self._publisher = publisher
        self._topology = topology
        self._grace = grace

    async def check(self, turn: Turn, state: StreamState, counts: Counter[str]) -> None:
        """Confirm what arrived, and publish lost copies again under the next redrive number."""
        await self._connections.run(store.confirm)
        find = partial(
            store.find_unconfirmed,
            now=turn.now,
            grace=self._grace,
            oldest=oldest_republished(turn, self._topology),
            limit=_BATCH_SIZE,
        )
        redriven = await self._connections.run(find)
        if not redriven:
            return
        lost = await find_lost(self._nats, self._topology.events.stream, redriven, state)
        passed = [item for item in redriven if item not in lost and (item.stream_sequence or 0) <= state.passed]
        if passed and await advisories_are_recorded(self._nats, self._topology):
            lost += passed
        if not lost:
            return
        redrives = await self._connections.run(partial(store.begin_again, lost=lost, now=turn.now))
        stored, failed = await publish_redrives(self._publisher, redrives)
        await self._connections.run(partial(store.finish_again, stored=stored, now=turn.now))
        counts["lost"] += len(redrives)
        counts["put_back"] += len(stored)
        logger.error("redriven messages lost, publishing again", count=len(redrives), failed=sorted(failed))
