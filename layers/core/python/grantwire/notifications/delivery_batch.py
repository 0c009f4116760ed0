"""Sends the notifications of one claim and writes the outcome of each."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from grantwire.errors import CircuitOpenError, ReceiverBusyError, RejectedError, RetryableError
from grantwire.notifications.store import LEASE_EXPIRED
from grantwire.observability import logger
from grantwire.workers.leases import Completion, Failure, RetryDecision, decide_retry

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.notifications.receiver import ReceiverHealth
    from grantwire.notifications.senders import Sender
    from grantwire.notifications.store import Notification
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import Lease, LeaseSettings

R = TypeVar("R")

# How often outcomes are written: rarely enough to write several together.
_WRITE_INTERVAL_SECONDS = 0.25
# How long running sends may take to finish after the budget has ended.
_GRACE_SECONDS = 3.5
_MAX_ERROR_LENGTH = 500


class DeliveryBatch:
    """The notifications of one claim. Every write checks that the lease is still held."""

    def __init__(
        self,
        database: Database,
        settings: LeaseSettings,
        lease: Lease[Notification],
        counts: Counter[str],
        rand: Callable[[], float],
        receiver: ReceiverHealth,
    ) -> None:
        self._database = database
        self._settings = settings
        self._lease = lease
        self._counts = counts
        self._rand = rand
        self._receiver = receiver
        self._running: dict[Future[str], Notification] = {}

    async def run(self, claimed: Sequence[Notification], sender: Sender, pool: Executor, budget: Budget) -> None:
        """Send the claimed notifications, or as many as the budget allows.

        Raises LeaseLostError if the lease ends before the outcomes are written.
        """
        exhausted = [n for n in claimed if n.attempt_count >= self._settings.max_attempts]
        # Their last attempt ended with an expired lease: sending them again could end this worker, too.
        await self._fail(
            [Failure(n.notification_id, RetryDecision(n.attempt_count, None), LEASE_EXPIRED) for n in exhausted], budget
        )
        due = [n for n in claimed if n.attempt_count < self._settings.max_attempts]
        self._running = {pool.submit(sender.send, n): n for n in due}
        try:
            while self._running and not budget.is_over():
                await self._wait(min(_WRITE_INTERVAL_SECONDS, budget.remaining()))
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
        """Write the outcomes of all sends that have finished."""
        done = {future: n for future, n in self._running.items() if future.done()}
        outcomes = [(n, future.exception()) for future, n in done.items()]
        for _, error in outcomes:
            if not isinstance(error, CircuitOpenError):
                self._receiver.record(error)
        sent = [
            Completion(n.notification_id, future.result()) for future, n in done.items() if future.exception() is None
        ]
        await self._complete(sent, budget)
        await self._release([n.notification_id for n, error in outcomes if isinstance(error, CircuitOpenError)], budget)
        failed = [(n, error) for n, error in outcomes if error and not isinstance(error, CircuitOpenError)]
        await self._fail([self._failure(n, error) for n, error in failed], budget)
        for future in done:
            del self._running[future]

    async def _stop(self, budget: Budget) -> None:
        """Finish after the end of the budget: release unsent notifications, then wait briefly for running sends.

        A send that is still running after that fails with a retryable error, so that no lease stays held.
        """
        unsent = {future: n for future, n in self._running.items() if future.cancel()}
        self._running = {future: n for future, n in self._running.items() if future not in unsent}
        await self._release(_ids(unsent.values()), budget)
        await self._wait(_GRACE_SECONDS)
        await self._write_outcomes(budget)
        error = RetryableError("no response before the worker had to stop")
        await self._fail([self._failure(n, error) for n in self._running.values()], budget)
        self._running = {}

    def _failure(self, notification: Notification, error: BaseException) -> Failure:
        """Decide whether and when a failed notification is retried.

        An unexpected error is a bug in a sender; it is retried, because a later version may have fixed it. While the
        circuit breaker is not closed, the receiver is at fault: the notification is retried later without counting an
        attempt.
        """
        if not isinstance(error, RejectedError | RetryableError):
            logger.error(
                "unexpected sender error", notification_id=str(notification.notification_id), reason=repr(error)
            )
        attempts = notification.attempt_count
        if isinstance(error, RetryableError) and self._receiver.is_open:
            decision = RetryDecision(attempts, self._settings.backoff.delay(attempts + 1, self._rand))
        else:
            permanent = isinstance(error, RejectedError)
            decision = decide_retry(self._settings, attempts, self._rand, permanent=permanent)
        if isinstance(error, ReceiverBusyError):
            decision = decision.not_before(timedelta(seconds=error.retry_after))
        reason = (str(error) or repr(error))[:_MAX_ERROR_LENGTH].replace("\x00", "")
        return Failure(notification.notification_id, decision, reason)

    async def _complete(self, sent: Sequence[Completion], budget: Budget) -> None:
        if sent:
            done = await self._persist(lambda tx: self._lease.complete(tx, sent), budget)
            self._counts["sent"] += len(done)

    async def _release(self, unsent: Sequence[UUID], budget: Budget) -> None:
        if unsent:
            released = await self._persist(lambda tx: self._lease.release(tx, unsent), budget)
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
        async def run(operation: Callable[[Connection], R]) -> R:
            with self._database.session() as tx:
                return operation(tx)

        return await self._lease.persist(run, change, budget)


def _ids(notifications: Iterable[Notification]) -> list[UUID]:
    return [n.notification_id for n in notifications]
