"""From PostgreSQL to a receiver: claim what is due, send it, write what came of it (D1, D2).

While PostgreSQL is out of reach nothing is claimed, so nothing is sent that could not be recorded. While the circuit to
the receiver is open nothing is claimed either, except one notification after each rest, as a trial. What fails then is
the receiver and costs no attempt, so an outage of any length makes no dead letters of what waits for its end (C10). No
invocation ends with a lease held: what it cannot finish it gives back.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar

from grantwire.notifications import store
from grantwire.notifications.delivery_batch import Batch
from grantwire.notifications.senders.breaker import BreakerSender
from grantwire.notifications.store import Notification
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.workers.leases import Lease
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from grantwire.database import Database
    from grantwire.notifications.senders import Sender
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings
    from grantwire.workers.listener import Listener
    from grantwire_idempotency.circuit_breaker import CircuitBreaker


class Delivery(Worker):
    """Sends notifications with one sender, behind a circuit breaker if there is one.

    `now` is None in production: time is the database's.
    """

    name = "deliver_notifications"
    counters: ClassVar[Mapping[str, str | None]] = {
        "sent": "NotificationsSent",
        "retried": "NotificationsRetried",
        "failed": "NotificationsFailed",
        "released": None,
        "leases_lost": None,
    }

    def __init__(  # noqa: PLR0913 - what it works with, then time and chance
        self,
        database: Database,
        sender: Sender,
        listener: Listener,
        settings: LeaseSettings,
        worker: str,
        *,
        breaker: CircuitBreaker | None = None,
        now: Callable[[], datetime | None] = lambda: None,
        rand: Callable[[], float] = random.random,
    ) -> None:
        super().__init__()
        self._database = database
        self._breaker = breaker
        self._sender = sender if breaker is None else BreakerSender(sender, breaker)
        self._listener = listener
        self._settings = settings
        self._worker = worker
        self._now = now
        self._rand = rand
        self._pool = ThreadPoolExecutor(sender.concurrency, thread_name_prefix="sender")
        self._paused = 0.0

    async def begin(self) -> None:
        """Nothing is paused yet."""
        self._paused = 0.0

    async def step(self, budget: Budget) -> bool:
        """Claim one batch and send it; false if nothing was due. One notification is enough to try an open circuit."""
        if (seconds := 0.0 if self._breaker is None else self._breaker.open_for()) > 0:
            return await self._wait_for_receiver(seconds, budget)
        trial = self._breaker is not None and not self._breaker.closed
        lease = Lease[Notification](store, self._settings, self._worker, self._now)
        with self._database.session() as tx:
            claimed = lease.claim(tx, 1 if trial else None)
        if claimed:
            batch = Batch(self._database, self._settings, lease, self.counts, self._rand, breaker=self._breaker)
            await batch.run(claimed, self._sender, self._pool, budget)
        return bool(claimed)

    async def wait(self, seconds: float) -> None:
        """Wait until the bridge notifies, or for the poll interval."""
        await self._listener.wait(min(self._settings.poll_interval.total_seconds(), seconds))

    async def end(self) -> None:
        """Stop listening, and report how long the receiver kept everything waiting."""
        self._listener.close()
        if self._paused:
            metrics.add_metric("SenderPaused", MetricUnit.Seconds, round(self._paused, 3))

    def close(self) -> None:
        """End the threads; the connections belong to the runtime."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_receiver(self, seconds: float, budget: Budget) -> bool:
        """Wait until it is time for a trial, or for the end; there is nothing to do for a worker that may not wait."""
        if budget.until_idle:
            return False
        pause = min(seconds, budget.remaining())
        logger.warning("receiver unavailable, waiting", delay_s=round(pause, 1))
        await asyncio.sleep(pause)
        self._paused += pause
        return True
