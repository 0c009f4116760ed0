"""What one claim of notifications holds, from the claim to the last of its outcomes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from grantwire.errors import CircuitOpenError, RejectedError, RetryableError
from grantwire.notifications.store import LEASE_EXPIRED
from grantwire.observability import logger
from grantwire.workers.leases import Failure, RetryDecision, decide_retry

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.notifications.senders import Sender
    from grantwire.notifications.store import Notification
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import Lease, LeaseSettings
    from grantwire_idempotency.circuit_breaker import CircuitBreaker

R = TypeVar("R")

# Outcomes are written together, and not much later than they are known.
_TICK_SECONDS = 0.25
# How long after the end of the budget an answer is waited for.
_GRACE_SECONDS = 3.5
_LONGEST_ERROR = 500


class Batch:
    """The notifications of one claim; everything that it writes goes through the lease."""

    def __init__(
        self,
        database: Database,
        settings: LeaseSettings,
        lease: Lease[Notification],
        counts: Counter[str],
        rand: Callable[[], float],
        *,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._lease = lease
        self._counts = counts
        self._rand = rand
        self._breaker = breaker
        self._running: dict[Future[None], Notification] = {}

    async def run(self, claimed: Sequence[Notification], sender: Sender, pool: Executor, budget: Budget) -> None:
        """Send them all, or as many as the budget allows; raises LeaseLostError if the claim did not last."""
        spent = [n for n in claimed if n.attempt_count >= self._settings.max_attempts]
        # Those that took their worker with them each time are not tried again.
        await self._fail(
            [Failure(n.notification_id, RetryDecision(n.attempt_count, None), LEASE_EXPIRED) for n in spent], budget
        )
        due = [n for n in claimed if n.attempt_count < self._settings.max_attempts]
        self._running = {pool.submit(sender.send, n): n for n in due}
        try:
            while self._running and not budget.is_over():
                await self._wait(min(_TICK_SECONDS, budget.remaining()))
                await self._write_outcomes(budget)
                if self._running and self._lease.should_renew:
                    await self._persist(self._lease.renew, budget)
            if self._running:
                await self._stop(budget)
        finally:
            for future in self._running:
                future.cancel()

    async def _wait(self, seconds: float) -> None:
        await asyncio.to_thread(wait, self._running, timeout=seconds)

    async def _write_outcomes(self, budget: Budget) -> None:
        """Write the outcomes that are known."""
        done = {future: n for future, n in self._running.items() if future.done()}
        outcomes = [(n, future.exception()) for future, n in done.items()]
        await self._complete([n.notification_id for n, error in outcomes if error is None], budget)
        await self._release([n.notification_id for n, error in outcomes if isinstance(error, CircuitOpenError)], budget)
        failed = [(n, error) for n, error in outcomes if error and not isinstance(error, CircuitOpenError)]
        await self._fail([self._failure(n, error) for n, error in failed], budget)
        for future in done:
            del self._running[future]

    async def _stop(self, budget: Budget) -> None:
        """The budget is over: release what was not begun, wait a little for the rest, and leave no lease behind."""
        not_begun = {future: n for future, n in self._running.items() if future.cancel()}
        self._running = {future: n for future, n in self._running.items() if future not in not_begun}
        await self._release(_ids(not_begun.values()), budget)
        await self._wait(_GRACE_SECONDS)
        await self._write_outcomes(budget)
        late = RetryableError("no answer before the worker had to stop")
        await self._fail([self._failure(n, late) for n in self._running.values()], budget)
        self._running = {}

    def _failure(self, notification: Notification, error: BaseException) -> Failure:
        """Decide about a failed sending.

        An error that no sender should raise is a bug that a later version may have fixed: it is retried. While the
        receiver fails for every notification it is not this one's fault: it is put off, and no attempt is counted.
        """
        if not isinstance(error, RejectedError | RetryableError):
            logger.error(
                "unexpected sender error", notification_id=str(notification.notification_id), reason=repr(error)
            )
        attempts = notification.attempt_count
        if isinstance(error, RetryableError) and self._breaker is not None and not self._breaker.closed:
            decision = RetryDecision(attempts, self._settings.backoff.delay(attempts + 1, self._rand))
        else:
            permanent = isinstance(error, RejectedError)
            decision = decide_retry(self._settings, attempts, self._rand, permanent=permanent)
        reason = (str(error) or repr(error))[:_LONGEST_ERROR].replace("\x00", "")
        return Failure(notification.notification_id, decision, reason)

    async def _complete(self, sent: Sequence[UUID], budget: Budget) -> None:
        if sent:
            done = await self._persist(lambda tx: self._lease.complete(tx, sent), budget)
            self._counts["sent"] += len(done)

    async def _release(self, untried: Sequence[UUID], budget: Budget) -> None:
        if untried:
            released = await self._persist(lambda tx: self._lease.release(tx, untried), budget)
            self._counts["released"] += len(released)

    async def _fail(self, failures: Sequence[Failure], budget: Budget) -> None:
        if not failures:
            return
        failed = set(await self._persist(lambda tx: self._lease.fail(tx, failures), budget))
        for failure in failures:
            if failure.id not in failed:
                continue
            self._counts["failed" if failure.decision.is_final else "retried"] += 1
            if failure.decision.is_final:
                logger.error("notification failed", notification_id=str(failure.id), reason=failure.reason)

    async def _persist(self, change: Callable[[Connection], R], budget: Budget) -> R:
        async def run(use: Callable[[Connection], R]) -> R:
            with self._database.session() as tx:
                return use(tx)

        return await self._lease.persist(run, change, budget)


def _ids(notifications: Iterable[Notification]) -> list[UUID]:
    return [n.notification_id for n in notifications]
