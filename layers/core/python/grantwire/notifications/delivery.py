"""From PostgreSQL to a receiver: claim what is due, send it, write what came of it (D1, D2).

While PostgreSQL is out of reach nothing is claimed, so nothing is sent that could not be recorded. While the circuit to
the receiver is open nothing is claimed either, except one notification after each rest, as a trial. What fails then is
the receiver and costs no attempt, so an outage of any length makes no dead letters of what waits for its end (C10). No
invocation ends with a lease held: what it cannot finish it gives back.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from grantwire.errors import LeaseLostError, RetryableError
from grantwire.notifications.batches import Batch
from grantwire.notifications.senders.breaker import BreakerSender
from grantwire.notifications.store import claim_due
from grantwire.observability import MetricUnit, log, metrics
from grantwire.pauses import Pause
from grantwire.workers.leases import Claim

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from grantwire.database import Database
    from grantwire.notifications.senders import Sender
    from grantwire.notifications.wakeup import Wakeup
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings
    from grantwire_idempotency.circuit_breaker import CircuitBreaker

_METRICS = {"sent": "NotificationsSent", "retried": "NotificationsRetried", "failed": "NotificationsFailed"}


class Delivery:
    """Sends notifications with one sender, behind a circuit breaker if there is one.

    `now` is None in production: time is the database's.
    """

    def __init__(  # noqa: PLR0913 - what it works with, then time and chance
        self,
        database: Database,
        sender: Sender,
        wakeup: Wakeup,
        settings: LeaseSettings,
        worker: str,
        *,
        breaker: CircuitBreaker | None = None,
        now: Callable[[], datetime | None] = lambda: None,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._breaker = breaker
        self._sender = sender if breaker is None else BreakerSender(sender, breaker)
        self._wakeup = wakeup
        self._settings = settings
        self._worker = worker
        self._now = now
        self._rand = rand
        self._pool = ThreadPoolExecutor(sender.concurrency, thread_name_prefix="sender")
        self._counts: Counter[str] = Counter()
        self._paused = 0.0

    def run(self, budget: Budget) -> dict[str, int]:
        """Work until the budget ends, woken by the bridge or by the next poll."""
        self._counts = Counter(dict.fromkeys([*_METRICS, "released", "leases_lost"], 0))
        self._paused = 0.0
        pause = Pause()
        try:
            while not budget.over():
                if self._waits_for_receiver(budget):
                    if budget.until_idle:
                        break
                    continue
                try:
                    claimed = self._round(budget)
                    pause = Pause()
                except LeaseLostError:
                    self._counts["leases_lost"] += 1
                    continue
                except RetryableError as error:
                    if budget.until_idle:
                        raise
                    log.warning("waiting for PostgreSQL", reason=str(error))
                    time.sleep(min(pause.next(), budget.left()))
                    continue
                if claimed:
                    continue
                if budget.until_idle:
                    break
                self._wakeup.wait(min(self._settings.poll_interval.total_seconds(), budget.left()))
        finally:
            self._wakeup.close()
            self._report()
        return dict(self._counts)

    def _waits_for_receiver(self, budget: Budget) -> bool:
        """Whether the circuit is open; if so, wait until it is time for a trial, or for the end."""
        seconds = 0.0 if self._breaker is None else self._breaker.open_for()
        if seconds > 0 and not budget.until_idle:
            pause = min(seconds, budget.left())
            log.warning("waiting for the receiver", seconds=round(pause, 1))
            time.sleep(pause)
            self._paused += pause
        return seconds > 0

    def _round(self, budget: Budget) -> int:
        """Claim one batch and see it through; how many there were. One alone is enough to try an open circuit."""
        claim = Claim(self._worker)
        trial = self._breaker is not None and not self._breaker.closed
        limit = 1 if trial else self._settings.batch_size
        with self._database.session() as tx:
            claimed = claim_due(tx, claim.token, limit=limit, lease=self._settings.lease, now=self._now())
        if claimed:
            batch = Batch(self._database, self._settings, claim.token, self._now, self._rand, breaker=self._breaker)
            try:
                batch.run(claimed, self._sender, self._pool, budget)
            finally:
                self._counts.update(batch.counts)
        return len(claimed)

    def _report(self) -> None:
        for name, metric in _METRICS.items():
            if self._counts[name]:
                metrics.add_metric(metric, MetricUnit.Count, self._counts[name])
        if self._paused:
            metrics.add_metric("SenderPaused", MetricUnit.Seconds, round(self._paused, 3))

    def close(self) -> None:
        """Let the threads go; the connections belong to the runtime."""
        self._pool.shutdown(wait=False, cancel_futures=True)
