"""The relay: from the outbox to the stream, each event at least once and, the first time, in order (O2-O9)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from grantwire.errors import GrantwireError, LeaseLostError, RejectedError, RetryableError
from grantwire.jetstream.topology import ensure_topology
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.outbox import store
from grantwire.outbox.publication import Publication
from grantwire.outbox.store import ClaimedEvent
from grantwire.workers.leases import Failure, Lease, RetryDecision, decide_retry
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.publisher import Publisher
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.connections import Connections
    from grantwire.outbox.wakeup import Wakeup
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings

# After a batch that was not full the relay rests for this many times as long as the batch took, up to a limit: events
# that come by the thousand share a batch, instead of keeping a processor busy that the grants need.
_REST_FACTOR = 3.0
_LONGEST_REST_SECONDS = 0.015
# Batches in parallel while there is a backlog: two are at the database, the others' messages are made and stored.
_PARALLEL_BATCHES = 4
# How long acknowledgements are waited for when the time is up.
_GRACE_SECONDS = 1.0
_NO_ATTEMPT_LEFT = "no attempt is left: its lease ran out"


class Relay(Worker):
    """One execution environment's relay. All of it belongs to one event loop."""

    name = "relay_outbox"
    counters: ClassVar[Mapping[str, str | None]] = {
        "published": "EventsPublished",
        "retried": None,
        "failed": "EventsFailed",
        "released": None,
        "leases_lost": None,
    }

    def __init__(  # noqa: PLR0913 - what it works with, all of it named
        self,
        connections: Connections,
        nats: NatsConnection,
        publisher: Publisher,
        wakeup: Wakeup,
        *,
        topology: TopologySettings,
        leases: LeaseSettings,
        worker: str,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._connections = connections
        self._nats = nats
        self._publisher = publisher
        self._wakeup = wakeup
        self._topology = topology
        self._leases = leases
        self._worker = worker
        self._rand = rand
        self._clock = clock
        self._checked = False
        self._topology_on: object = None
        self._backlog = False

    async def begin(self) -> None:
        """A frozen sandbox loses its socket without noticing: check it before the first claim."""
        self._checked = False

    async def step(self, budget: Budget) -> bool:
        """Claim a batch and publish it; with a backlog several at a time."""
        await self._ensure_connected()
        began = asyncio.get_running_loop().time()
        if not await self._relay_batch(budget):
            return False
        if self._backlog:
            with self._connections.parallel():
                ends = await asyncio.gather(
                    *(self._drain_backlog(budget) for _ in range(_PARALLEL_BATCHES)), return_exceptions=True
                )
            for error in filter(None, ends):
                raise error
        elif not budget.until_idle:
            took = asyncio.get_running_loop().time() - began
            await asyncio.sleep(min(_REST_FACTOR * took, _LONGEST_REST_SECONDS, budget.remaining()))
        return True

    async def wait(self, seconds: float) -> None:
        """Wait until an enqueue notifies, or for the poll interval."""
        await self._wakeup.wait(min(self._leases.poll_interval.total_seconds(), seconds))

    def hand_over(self) -> None:
        """Leave the lead to the next relay."""
        self._wakeup.close()

    async def end(self) -> None:
        """Release the locks, and measure the oldest event."""
        self._wakeup.close()
        with contextlib.suppress(GrantwireError):
            age = await self._connections.run(partial(store.oldest_age, now=self._clock()))
            metrics.add_metric("OldestEventAge", MetricUnit.Seconds, age)

    async def _ensure_connected(self) -> None:
        """Nothing is claimed that could not be published: a live connection, with its streams."""
        if self._checked and self._nats.is_connected:
            return
        await self._nats.connect()
        if self._topology_on is not self._nats.client:
            await ensure_topology(self._nats, self._topology)
            self._topology_on = self._nats.client
        self._checked = True

    async def _drain_backlog(self, budget: Budget) -> None:
        while self._backlog and self._checked and self._nats.is_connected and not budget.is_over():
            await self._relay_batch(budget)

    async def _relay_batch(self, budget: Budget) -> bool:
        """Claim one batch and publish it; false if there was nothing to claim."""
        lease = Lease[ClaimedEvent](store, self._leases, self._worker, self._clock)
        events = await self._connections.run(lease.claim)
        self._backlog = len(events) == self._leases.batch_size
        if not events:
            return False
        self._wakeup.wake_up()
        try:
            # An event that was released by a dead worker comes last: if it kills this worker too, the others are safe.
            for part in ([e for e in events if not e.reclaimed], [e for e in events if e.reclaimed]):
                if part:
                    await self._publish(lease, part, budget)
        except LeaseLostError:
            self.counts["leases_lost"] += 1
        except BaseException:
            # An error that is not about these events: another relay may have them at once.
            with contextlib.suppress(GrantwireError):
                await self._connections.run(lease.release)
            raise
        self._wakeup.wake_up()
        return True

    async def _publish(self, lease: Lease[ClaimedEvent], events: Sequence[ClaimedEvent], budget: Budget) -> None:
        """Publish events of a claim and write what became of each."""
        spent: list[ClaimedEvent] = []
        due: list[ClaimedEvent] = []
        for event in events:
            (spent if event.attempt_count >= self._leases.max_attempts else due).append(event)
        publication = Publication(self._publisher, self._topology.events.subject, due)
        watch = asyncio.create_task(self._watch(lease, publication, budget))
        try:
            await publication.run()
        finally:
            watch.cancel()
            await asyncio.wait({watch})
        if not watch.cancelled() and (error := watch.exception()) is not None:
            raise error
        failures = [self._failure(event, error) for event, error in publication.failed]
        failures += [
            Failure(event.event_id, RetryDecision(event.attempt_count, None), _NO_ATTEMPT_LEFT) for event in spent
        ]
        if any(isinstance(error, RetryableError) for _, error in publication.failed):
            self._checked, self._topology_on = False, None  # check both again before anything else is claimed
        await self._write_outcomes(lease, publication, failures, budget)

    async def _watch(self, lease: Lease[ClaimedEvent], publication: Publication, budget: Budget) -> None:
        """Renew the lease while publishing is slow; stop when the budget ends, or at once if the lease is lost."""
        while True:
            await asyncio.sleep(min(self._leases.lease.total_seconds() / 3, budget.remaining()))
            if budget.is_over():
                publication.stop()
                await asyncio.sleep(_GRACE_SECONDS)
                publication.halt()
                return
            try:
                await self._connections.run(lease.renew)
            except LeaseLostError:
                publication.halt()
                raise
            except RetryableError as error:
                logger.warning("could not renew lease", reason=str(error))

    def _failure(self, event: ClaimedEvent, error: GrantwireError) -> Failure:
        permanent = isinstance(error, RejectedError)
        decision = decide_retry(self._leases, event.attempt_count, self._rand, permanent=permanent)
        return Failure(event.event_id, decision, str(error))

    async def _write_outcomes(
        self, lease: Lease[ClaimedEvent], publication: Publication, failures: Sequence[Failure], budget: Budget
    ) -> None:
        """Write what became of each event: one statement for each outcome."""
        published, untried = publication.published, list(publication.untried)

        async def persist(change: Callable[[Connection], list[Any]]) -> list[Any]:
            return await lease.persist(self._connections.run, change, budget)

        events = dict(lease.held)
        if published:
            done = await persist(lambda tx: lease.complete(tx, published))
            self.counts["published"] += len(done)
        if failures:
            failed = set(await persist(lambda tx: lease.fail(tx, failures)))
            for failure in failures:
                if failure.id in failed:
                    self._report_failure(events[failure.id], failure)
        if untried:
            released = await persist(lambda tx: lease.release(tx, untried))
            self.counts["released"] += len(released)

    def _report_failure(self, event: ClaimedEvent, failure: Failure) -> None:
        final = failure.decision.is_final
        self.counts["failed" if final else "retried"] += 1
        (logger.error if final else logger.warning)(
            "event failed" if final else "event failed, retrying",
            event_id=event.event_id,
            aggregate_key=event.aggregate_key,
            aggregate_version=event.aggregate_version,
            attempts=failure.decision.attempt_count,
            reason=failure.reason,
        )
