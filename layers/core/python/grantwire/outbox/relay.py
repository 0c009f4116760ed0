"""The relay: from the outbox to the stream, each event at least once and, the first time, in order (O2-O9)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from grantwire.errors import GrantwireError, LeaseLostError, RejectedError, RetryableError
from grantwire.jetstream.topology import TopologySettings, ensure_topology
from grantwire.observability import MetricUnit, log, metrics
from grantwire.outbox import store
from grantwire.outbox.publication import Publication
from grantwire.outbox.store import ClaimedEvent, Failure
from grantwire.pauses import Pause
from grantwire.workers.leases import Claim, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from nats.aio.client import Client

    from grantwire.database import Connection
    from grantwire.jetstream import Broker
    from grantwire.outbox.connections import Connections
    from grantwire.outbox.wakeup import Wakeup
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings

# An awake relay looks so often, and sleeps when it has found nothing for so long.
_PULSE_SECONDS = 0.005
_AWAKE_SECONDS = 0.05
# After a batch that was not full it rests for so many times as long as that took, up to a limit: events that come by
# the thousand share a batch, instead of keeping a processor busy that the grants need.
_REST = 3.0
_LONGEST_REST_SECONDS = 0.015
# In its last moments a relay leaves the lead to the next one, and looks until that has surely taken it.
_FAREWELL_SECONDS = 0.15
# Rounds at a time while there is a backlog: two are at the database, the others' messages are made and stored.
_LANES = 4
# How long acknowledgements are waited for when the time is up.
_GRACE_SECONDS = 1.0
# Why an event is given up without being tried: each time its worker was not heard of again.
_SPENT = "no attempt is left: its lease ran out"
# How long a result is held for a database that is out of reach when the time is up.
_LAST_WORDS_SECONDS = 2.0


class _Batch:
    """What one claim holds: renewed together, and smaller with each part that is settled."""

    def __init__(self, claim: Claim, events: Sequence[ClaimedEvent]) -> None:
        self.claim = claim
        self.held: set[str] = {event.event_id for event in events}


class Relay:
    """One execution environment's relay. All of it belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - what it works with, all of it named
        self,
        connections: Connections,
        broker: Broker,
        wakeup: Wakeup,
        *,
        topology: TopologySettings,
        leases: LeaseSettings,
        worker: str,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._broker = broker
        self._wakeup = wakeup
        self._topology = topology
        self._leases = leases
        self._worker = worker
        self._rand = rand
        self._clock = clock
        self._connected = False
        self._has_streams: Client | None = None
        self._backlog = False
        self._worked_at = self._round_took = 0.0
        self._tally: Counter[str] = Counter()

    async def work(self, budget: Budget) -> dict[str, int]:
        """Publish what comes until the budget ends, and hold nothing then; how many events went which way.

        Raises RetryableError only if it may not wait for a server that is out of reach (`until_idle`).
        """
        self._tally = Counter(published=0, retried=0, failed=0, released=0, lost=0)
        self._connected = False
        try:
            await self._work(budget)
        finally:
            self._wakeup.close()
            await self._report()
        return dict(self._tally)

    async def _work(self, budget: Budget) -> None:
        pause = Pause()
        while not budget.over():
            try:
                await self._connect()
                found = await self._rounds(budget)
            except RetryableError as error:
                if budget.until_idle:
                    raise
                log.warning("the relay waits", reason=str(error))
                await asyncio.sleep(min(pause.next(), budget.left()))
                continue
            pause = Pause()
            if budget.until_idle:
                if not found:
                    return
            elif found:
                await asyncio.sleep(min(_REST * self._round_took, _LONGEST_REST_SECONDS, budget.left()))
            else:
                await self._rest(budget)

    async def _connect(self) -> None:
        """Nothing is claimed that could not be published: a live connection, with its streams."""
        if self._connected and self._broker.is_connected:
            return
        await self._broker.connect()
        if self._has_streams is not self._broker.client:
            await ensure_topology(self._broker, self._topology)
            self._has_streams = self._broker.client
        self._connected = True

    async def _rounds(self, budget: Budget) -> bool:
        """One round; with a backlog several at a time."""
        if not await self._round(budget):
            return False
        if self._backlog:
            with self._connections.beside():
                ends = await asyncio.gather(*(self._lane(budget) for _ in range(_LANES)), return_exceptions=True)
            for error in filter(None, ends):
                raise error
        return True

    async def _lane(self, budget: Budget) -> None:
        while self._backlog and self._connected and self._broker.is_connected and not budget.over():
            await self._round(budget)

    async def _round(self, budget: Budget) -> bool:
        """Claim a batch and see it through; false if there was nothing to claim."""
        if budget.left() <= _FAREWELL_SECONDS:
            self._wakeup.close()
        began = asyncio.get_running_loop().time()
        claim = Claim(self._worker)
        batch_size, lease, now = self._leases.batch_size, self._leases.lease, self._clock()
        events = await self._connections.run(lambda tx: store.claim(tx, claim, batch=batch_size, lease=lease, now=now))
        self._backlog = len(events) == batch_size
        if not events:
            return False
        self._wakeup.wake_up()
        batch = _Batch(claim, events)
        try:
            # What was let go before comes last: if it kills this worker too, the others are safe.
            for part in ([e for e in events if not e.reclaimed], [e for e in events if e.reclaimed]):
                if part:
                    await self._deliver(batch, part, budget)
        except LeaseLostError:
            self._tally["lost"] += 1
        except BaseException:
            await self._give_back(batch)
            raise
        self._worked_at = asyncio.get_running_loop().time()
        self._round_took = self._worked_at - began
        return True

    async def _rest(self, budget: Budget) -> None:
        """Wait for more: not for long while awake, then asleep until a notification or the poll interval."""
        idle = asyncio.get_running_loop().time() - self._worked_at
        if budget.left() <= _FAREWELL_SECONDS or (self._wakeup.enabled and idle < _AWAKE_SECONDS):
            await asyncio.sleep(min(_PULSE_SECONDS, budget.left()))
        elif self._wakeup.asleep or not self._wakeup.fall_asleep():
            await self._wakeup.wait(min(self._leases.poll_interval.total_seconds(), budget.left() - _FAREWELL_SECONDS))

    async def _deliver(self, batch: _Batch, events: Sequence[ClaimedEvent], budget: Budget) -> None:
        """Publish events of a batch and settle what became of each."""
        spent: list[ClaimedEvent] = []
        due: list[ClaimedEvent] = []
        for event in events:
            (spent if event.attempt_count >= self._leases.max_attempts else due).append(event)
        publication = Publication(self._broker, self._topology.events.subject, due)
        watch = asyncio.create_task(self._watch(batch, publication, budget))
        try:
            await publication.run()
        finally:
            watch.cancel()
            await asyncio.wait({watch})
        if not watch.cancelled() and (error := watch.exception()) is not None:
            raise error
        failures = [self._judged(event, error) for event, error in publication.failed]
        failures += [Failure(event, Verdict(event.attempt_count, None), _SPENT) for event in spent]
        await self._settle(batch, publication, failures, budget)

    async def _watch(self, batch: _Batch, publication: Publication, budget: Budget) -> None:
        """Keep the lease while publishing is slow; stop in good time, or at once if the lease is lost."""
        while True:
            await asyncio.sleep(min(self._leases.lease.total_seconds() / 3, budget.left()))
            if budget.over():
                publication.stop()
                await asyncio.sleep(_GRACE_SECONDS)
                publication.halt()
                return
            held, lease, now = list(batch.held), self._leases.lease, self._clock()
            try:
                await self._connections.run(
                    partial(store.renew, claim=batch.claim, event_ids=held, lease=lease, now=now)
                )
            except LeaseLostError:
                publication.halt()
                raise
            except RetryableError as error:
                log.warning("the lease could not be renewed", reason=str(error))

    def _judged(self, event: ClaimedEvent, error: GrantwireError) -> Failure:
        permanent = isinstance(error, RejectedError)
        return Failure(event, judge(self._leases, event.attempt_count, self._rand, permanent=permanent), str(error))

    async def _settle(
        self, batch: _Batch, publication: Publication, failures: Sequence[Failure], budget: Budget
    ) -> None:
        """Write down what became of each event: one statement for each kind."""
        published, untried, now = publication.published, list(publication.untried), self._clock()
        if any(isinstance(error, RetryableError) for _, error in publication.failed):
            self._connected, self._has_streams = False, None  # look at both again before anything else is claimed
        if published:
            await self._write(lambda tx: store.finalise(tx, batch.claim, published, now=now), budget)
            batch.held.difference_update(published)
        if failures:
            await self._write(lambda tx: store.fail(tx, batch.claim, failures, now=now), budget)
            batch.held.difference_update(failure.event.event_id for failure in failures)
        if untried:
            await self._write(lambda tx: store.release(tx, batch.claim, untried), budget)
            batch.held.difference_update(untried)
        self._count(published, failures, untried)

    async def _write(self, change: Callable[[Connection], None], budget: Budget) -> None:
        """Write to a database that may be out of reach for a moment: these events are ours and nobody else's."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + min(self._leases.lease.total_seconds(), max(budget.left(), _LAST_WORDS_SECONDS))
        pause = Pause()
        while True:
            try:
                return await self._connections.run(change)
            except LeaseLostError:
                raise
            except RetryableError:
                if loop.time() > give_up:
                    raise
                await asyncio.sleep(pause.next())

    async def _give_back(self, batch: _Batch) -> None:
        """After an error that is not about these events: another relay may have them at once."""
        with contextlib.suppress(GrantwireError):
            await self._connections.run(partial(store.release, claim=batch.claim, event_ids=list(batch.held)))

    def _count(self, published: Sequence[str], failures: Sequence[Failure], untried: Sequence[str]) -> None:
        self._tally["published"] += len(published)
        self._tally["released"] += len(untried)
        for event, verdict, reason in failures:
            given_up = verdict.retry_after is None
            self._tally["failed" if given_up else "retried"] += 1
            (log.error if given_up else log.warning)(
                "event failed" if given_up else "event put off",
                event_id=event.event_id,
                aggregate_key=event.aggregate_key,
                aggregate_version=event.aggregate_version,
                attempts=verdict.attempt_count,
                reason=reason,
            )

    async def _report(self) -> None:
        for name, outcome in (("EventsPublished", "published"), ("EventsFailed", "failed")):
            if self._tally[outcome]:
                metrics.add_metric(name, MetricUnit.Count, self._tally[outcome])
        with contextlib.suppress(GrantwireError):
            age = await self._connections.run(partial(store.oldest_age, now=self._clock()))
            metrics.add_metric("OldestEventAge", MetricUnit.Seconds, age)
