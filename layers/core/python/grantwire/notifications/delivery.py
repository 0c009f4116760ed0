"""The delivery worker: claims notifications that are due, sends them and writes the outcomes (D1, D2).

While PostgreSQL is unavailable nothing is claimed, so nothing is sent whose outcome could not be recorded. While the
circuit breaker is open nothing is claimed either, except one notification as a trial after each rest. A failed trial
costs the notification no attempt, so an outage of the receiver creates no dead letters however long it lasts (C10).
Nothing is claimed either while the sender cannot get what it needs, for example the secret with its keys.
An invocation releases the claims that it cannot finish, so none ends while it holds a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar

from grantwire.errors import InternalError, RetryableError
from grantwire.notifications import store
from grantwire.notifications.delivery_batch import DeliveryBatch
from grantwire.notifications.receiver import ReceiverHealth
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
    from grantwire_idempotency import CircuitBreaker


class Delivery(Worker):
    """Worker that sends notifications with one sender, behind a circuit breaker if one is given.

    `now` returns None in production, which means the database's clock.
    """

    name = "deliver_notifications"
    counters: ClassVar[Mapping[str, str | None]] = {
        "sent": "NotificationsSent",
        "retried": "NotificationsRetried",
        "failed": "NotificationsFailed",
        "released": None,
        "leases_lost": None,
    }

    def __init__(  # noqa: PLR0913 - five collaborators, then clock and randomness for tests
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
        self._receiver = ReceiverHealth(breaker)
        self._sender = sender if breaker is None else BreakerSender(sender, breaker)
        self._listener = listener
        self._settings = settings
        self._worker = worker
        self._now = now
        self._rand = rand
        self._pool = ThreadPoolExecutor(sender.concurrency, thread_name_prefix="sender")
        self._paused_seconds = 0.0

    async def begin(self) -> None:
        """Reset the time spent waiting for the receiver, and make due what a clock that was set back delays.

        An open circuit stays open until a trial succeeds.
        """
        self._paused_seconds = 0.0
        self.facts.update(self._receiver.facts(now=True))
        with contextlib.suppress(RetryableError, InternalError), self._database.session() as tx:
            if count := store.hasten_first_attempts(tx, self._now()):
                logger.warning("clock was set back, sending delayed notifications", count=count)

    async def step(self, budget: Budget) -> bool:
        """Claim one batch and send it; return false if nothing was due.

        If the circuit breaker is due for a trial, the batch is a single notification.
        """
        if (seconds := 0.0 if self._breaker is None else self._breaker.open_for()) > 0:
            return await self._wait_for_receiver(seconds, budget)
        self._sender.prepare()
        is_trial = self._breaker is not None and not self._breaker.closed
        lease = Lease[Notification](store, self._settings, self._worker, self._now)
        with self._database.session() as tx:
            claimed = lease.claim(tx, 1 if is_trial else None)
        if claimed:
            batch = DeliveryBatch(self._database, self._settings, lease, self.counts, self._rand, self._receiver)
            try:
                await batch.run(claimed, self._sender, self._pool, budget)
            finally:
                self.facts.update(self._receiver.facts())
        return bool(claimed)

    async def wait(self, seconds: float) -> None:
        """Wait for a wake-up from the bridge, at most for the poll interval."""
        await self._listener.wait(min(self._settings.poll_interval.total_seconds(), seconds))

    async def end(self) -> None:
        """Stop listening, close connections to the receiver, and report how long the worker waited for it.

        A frozen execution environment would lose these connections unnoticed.
        """
        self._listener.close()
        self._sender.close()
        self.facts.update(self._receiver.facts(now=True))
        if self._paused_seconds:
            metrics.add_metric("SenderPaused", MetricUnit.Seconds, round(self._paused_seconds, 3))

    def close(self) -> None:
        """Stop the sender threads; the runtime closes the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_receiver(self, seconds: float, budget: Budget) -> bool:
        """Wait until the next trial is due or the budget ends; return false immediately with `until_idle`."""
        if budget.until_idle:
            return False
        delay = min(seconds, budget.remaining())
        logger.warning("receiver unavailable, waiting", delay_s=round(delay, 1))
        await asyncio.sleep(delay)
        self._paused_seconds += delay
        return True
