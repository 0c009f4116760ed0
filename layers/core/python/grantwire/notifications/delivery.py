"""From PostgreSQL to a receiver: claim what is due, send it, write what came of it (D1, D2).

While PostgreSQL is out of reach nothing is claimed, so nothing is sent that could not be recorded. No invocation ends
with a lease held: what it cannot finish it gives back.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from grantwire.errors import LeaseLostError, RetryableError
from grantwire.leases import Claim
from grantwire.notifications.batches import Batch
from grantwire.notifications.store import claim_due
from grantwire.observability import MetricUnit, log, metrics
from grantwire.pauses import Pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from grantwire.budget import Budget
    from grantwire.database import Database
    from grantwire.leases import LeaseSettings
    from grantwire.notifications.senders import Sender
    from grantwire.notifications.wakeup import Wakeup

_METRICS = {"sent": "NotificationsSent", "retried": "NotificationsRetried", "failed": "NotificationsFailed"}


class Delivery:
    """Sends notifications with one sender. `now` is None in production: time is the database's."""

    def __init__(  # noqa: PLR0913 - what it works with, then time and chance
        self,
        database: Database,
        sender: Sender,
        wakeup: Wakeup,
        settings: LeaseSettings,
        worker: str,
        *,
        now: Callable[[], datetime | None] = lambda: None,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._sender = sender
        self._wakeup = wakeup
        self._settings = settings
        self._worker = worker
        self._now = now
        self._rand = rand
        self._pool = ThreadPoolExecutor(sender.concurrency, thread_name_prefix="sender")
        self._counts: Counter[str] = Counter()

    def run(self, budget: Budget) -> dict[str, int]:
        """Work until the budget ends, woken by the bridge or by the next poll."""
        self._counts = Counter(dict.fromkeys([*_METRICS, "released", "leases_lost"], 0))
        pause = Pause()
        try:
            while not budget.over():
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
            for name, metric in _METRICS.items():
                if self._counts[name]:
                    metrics.add_metric(metric, MetricUnit.Count, self._counts[name])
        return dict(self._counts)

    def _round(self, budget: Budget) -> int:
        """Claim one batch and see it through; how many there were."""
        claim = Claim(self._worker)
        with self._database.session() as tx:
            claimed = claim_due(
                tx, claim.token, limit=self._settings.batch_size, lease=self._settings.lease, now=self._now()
            )
        if claimed:
            batch = Batch(self._database, self._settings, claim.token, self._now, self._rand)
            try:
                batch.run(claimed, self._sender, self._pool, budget)
            finally:
                self._counts.update(batch.counts)
        return len(claimed)

    def close(self) -> None:
        """Let the threads go; the connections belong to the runtime."""
        self._pool.shutdown(wait=False, cancel_futures=True)
