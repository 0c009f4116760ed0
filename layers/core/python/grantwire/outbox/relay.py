"""The relay: claims outbox events, publishes them to the stream, and writes the outcome of each (O2-O9)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from grantwire.errors import GrantwireError, LeaseLostError, RejectedError, RetryableError
from grantwire.jetstream.topology import verify_streams
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.outbox import store
from grantwire.outbox.confirmation.store import count_unconfirmed
from grantwire.outbox.publication import BatchPublication
from grantwire.outbox.store import ClaimedEvent
from grantwire.workers.leases import Failure, Lease, RetryDecision, decide_retry
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.publisher import Publisher
    from grantwire.jetstream.topology import TopologySettings
    from grantwire.outbox.confirmation.turn import Confirmation
    from grantwire.outbox.connections import Connections
    from grantwire.outbox.wakeup import Wakeup
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings

# After a batch that was not full, the relay rests for this multiple of the batch's duration, up to the maximum. Under
# load, events then share batches, and many tiny batches do not take processor time from the grants.
_REST_FACTOR = 3.0
_MAX_REST_SECONDS = 0.015
# Batches in parallel while there is a backlog: two of them can use the database while the others are published.
_PARALLEL_BATCHES = 4
# How long to wait for acknowledgements after the budget has ended.
_ACK_GRACE_SECONDS = 1.0
# A lease is renewed after this part of it has passed.
_RENEW_AFTER = 1 / 3
_LEASE_EXPIRED = "lease expired on the last attempt"


class Relay(Worker):
    """The relay of one execution environment. It belongs to one event loop."""

    name = "relay_outbox"
    counters: ClassVar[Mapping[str, str | None]] = {
        "published": "EventsPublished",
        "retried": None,
        "failed": "EventsFailed",
        "released": None,
        "leases_lost": None,
        "lost": "EventsLost",
        "put_back": "EventsRepublished",
        "too_old": "EventsTooOld",
        "ranges_lost": "StreamHistoryLost",
    }

    def __init__(  # noqa: PLR0913 - its dependencies, passed by name
        self,
        connections: Connections,
        nats: NatsConnection,
        publisher: Publisher,
        wakeup: Wakeup,
        confirmation: Confirmation,
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
        self._confirmation = confirmation
        self._topology = topology
        self._leases = leases
        self._worker = worker
        self._rand = rand
        self._clock = clock
        self._connection_checked = False
        # The NATS client on which the streams were verified.
        self._topology_client: object = None
        self._has_backlog = False

    async def begin(self) -> None:
        """Require a check of the NATS connection before the first claim: a frozen sandbox may have lost its socket."""
        self._connection_checked = False

    async def step(self, budget: Budget) -> bool:
        """Claim and publish one batch, then several in parallel while there is a backlog.

        Before that, compare what was published with what arrived, if it is time. In a backlog, this runs beside it.
        """
        await self._ensure_connected()
        is_checking = self._confirmation.is_due and await self._confirmation.run(self.counts)
        started_at = asyncio.get_running_loop().time()
        if not await self._relay_batch(budget):
            return is_checking
        if self._has_backlog:
            with self._connections.parallel():
                errors = await asyncio.gather(
                    *(self._drain_backlog(budget) for _ in range(_PARALLEL_BATCHES)), return_exceptions=True
                )
            for error in filter(None, errors):
                raise error
        elif not budget.until_idle:
            duration = asyncio.get_running_loop().time() - started_at
            await asyncio.sleep(min(_REST_FACTOR * duration, _MAX_REST_SECONDS, budget.remaining()))
        return True

    async def wait(self, seconds: float) -> None:
        """Wait for a wake-up, at most for the poll interval."""
        await self._wakeup.wait(min(self._leases.poll_interval.total_seconds(), seconds))

    def hand_over(self) -> None:
        """Release the leader lock to the next relay."""
        self._wakeup.close()

    async def end(self) -> None:
        """Release the locks and write the metrics OldestEventAge and EventsUnconfirmed."""
        self._wakeup.close()
        with contextlib.suppress(GrantwireError):
            age = await self._connections.run(partial(store.oldest_age_seconds, now=self._clock()))
            metrics.add_metric("OldestEventAge", MetricUnit.Seconds, age)
            unconfirmed = await self._connections.run(count_unconfirmed)
            metrics.add_metric("EventsUnconfirmed", MetricUnit.Count, unconfirmed)

    async def _ensure_connected(self) -> None:
        """Connect to NATS and verify the streams, so that only events that can be published are claimed."""
        if self._connection_checked and self._nats.is_connected:
            return
        await self._nats.connect()
        if self._topology_client is not self._nats.client:
            await verify_streams(self._nats, self._topology)
            self._topology_client = self._nats.client
        self._connection_checked = True

    async def _drain_backlog(self, budget: Budget) -> None:
        """Publish batches until there is no backlog. One check at a time runs beside the batches of the others."""
        while self._has_backlog and self._may_continue(budget):
            if self._confirmation.is_due:
                await self._confirmation.run(self.counts)
            else:
                await self._relay_batch(budget)

    def _may_continue(self, budget: Budget) -> bool:
        """Return whether the connection is usable, and the budget is not over."""
        return self._connection_checked and self._nats.is_connected and not budget.is_over()

    async def _relay_batch(self, budget: Budget) -> bool:
        """Claim and publish one batch; return False if there was nothing to claim."""
        lease = Lease[ClaimedEvent](store, self._leases, self._worker, self._clock)
        events = await self._connections.run(lease.claim)
        self._has_backlog = len(events) == self._leases.batch_size
        if not events:
            return False
        self._wakeup.wake_up()
        try:
            # A reclaimed event may have killed its last worker. It comes last: if it kills this one too, the other
            # events of the batch are already completed.
            for group in ([e for e in events if not e.reclaimed], [e for e in events if e.reclaimed]):
                if group:
                    await self._publish(lease, group, budget)
        except LeaseLostError:
            self.counts["leases_lost"] += 1
        except BaseException:
            # The events did not cause this error: release them, so that another relay can claim them immediately.
            with contextlib.suppress(GrantwireError):
                await self._connections.run(lease.release)
            raise
        self._wakeup.wake_up()
        return True

    async def _publish(self, lease: Lease[ClaimedEvent], events: Sequence[ClaimedEvent], budget: Budget) -> None:
        """Publish claimed events and write the outcome of each."""
        exhausted: list[ClaimedEvent] = []
        publishable: list[ClaimedEvent] = []
        for event in events:
            (exhausted if event.attempt_count >= self._leases.max_attempts else publishable).append(event)
        publication = BatchPublication(self._publisher, self._topology.events.subject, publishable)
        supervisor = asyncio.create_task(self._supervise(publication, lease, budget))
        try:
            await publication.run()
        finally:
            supervisor.cancel()
            await asyncio.wait({supervisor})
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            raise error
        failures = [self._to_failure(event, error) for event, error in publication.failed]
        failures += [
            Failure(event.event_id, RetryDecision(event.attempt_count, None), _LEASE_EXPIRED) for event in exhausted
        ]
        if any(isinstance(error, RetryableError) for _, error in publication.failed):
            # The connection or the stream may be the cause: check both before the next claim.
            self._connection_checked, self._topology_client = False, None
        await self._write_outcomes(lease, publication, failures, budget)

    async def _supervise(self, publication: BatchPublication, lease: Lease[ClaimedEvent], budget: Budget) -> None:
        """Renew the lease while publishing is slow.

        Stop the publication when the budget ends, and abort it if the lease is lost.
        """
        while True:
            await asyncio.sleep(min(self._leases.lease.total_seconds() * _RENEW_AFTER, budget.remaining()))
            if budget.is_over():
                publication.stop_sending()
                await asyncio.sleep(_ACK_GRACE_SECONDS)
                publication.abort()
                return
            try:
                await self._connections.run(lease.renew)
            except LeaseLostError:
                publication.abort()
                raise
            except RetryableError as error:
                logger.warning("could not renew lease", reason=str(error))

    def _to_failure(self, event: ClaimedEvent, error: GrantwireError) -> Failure:
        permanent = isinstance(error, RejectedError)
        decision = decide_retry(self._leases, event.attempt_count, self._rand, permanent=permanent)
        return Failure(event.event_id, decision, str(error))

    async def _write_outcomes(
        self, lease: Lease[ClaimedEvent], publication: BatchPublication, failures: Sequence[Failure], budget: Budget
    ) -> None:
        """Complete, fail and release the events of a publication, with one statement for each outcome."""
        events, run = dict(lease.held), self._connections.run
        if publication.published:
            # Batches run in parallel: a count that is read before the wait would lose what the others add.
            completed = await lease.persist(run, partial(lease.complete, completions=publication.published), budget)
            self.counts["published"] += len(completed)
        if failures:
            failed = set(await lease.persist(run, partial(lease.fail, failures=failures), budget))
            for failure in failures:
                if failure.id in failed:
                    self._report_failure(events[failure.id], failure)
        if unresolved := list(publication.unresolved):
            released = await lease.persist(run, partial(lease.release, ids=unresolved), budget)
            self.counts["released"] += len(released)

    def _report_failure(self, event: ClaimedEvent, failure: Failure) -> None:
        is_final = failure.decision.is_final
        self.counts["failed" if is_final else "retried"] += 1
        (logger.error if is_final else logger.warning)(
            "event failed" if is_final else "event failed, retrying",
            event_id=event.event_id,
            aggregate_key=event.aggregate_key,
            aggregate_version=event.aggregate_version,
            attempts=failure.decision.attempt_count,
            reason=failure.reason,
        )
