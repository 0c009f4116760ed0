"""What one claim holds, from the claim to the last of its outcomes."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from grantwire.errors import CircuitOpenError, LeaseLostError, RejectedError, RetryableError
from grantwire.notifications.dead_letters import write_dead_letters
from grantwire.notifications.store import LEASE_EXPIRED, mark_failed, mark_sent, release, renew
from grantwire.observability import log
from grantwire.pauses import Pause
from grantwire.workers.leases import Verdict, fence, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.notifications.senders import Sender
    from grantwire.notifications.store import Notification
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings
    from grantwire_idempotency.circuit_breaker import CircuitBreaker

    Failures = Mapping[UUID, tuple[Verdict, str]]

# Outcomes are written together, and not much later than they are known.
_TICK_SECONDS = 0.25
# How long after the end of the budget an answer is waited for, and then how long its outcome is tried to be written.
_GRACE_SECONDS = 3.5
_LAST_MOMENT_SECONDS = 5.0
_LONGEST_ERROR = 500


class Batch:
    """The notifications of one claim; everything that it writes names the claim."""

    def __init__(
        self,
        database: Database,
        settings: LeaseSettings,
        token: str,
        now: Callable[[], datetime | None],
        rand: Callable[[], float],
        *,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._token = token
        self._now = now
        self._rand = rand
        self._breaker = breaker
        self._lease = settings.lease.total_seconds()
        self._renewed = self._last_moment = time.monotonic()
        self._running: dict[Future[None], Notification] = {}
        self.counts: Counter[str] = Counter()

    def run(self, claimed: Sequence[Notification], sender: Sender, pool: Executor, budget: Budget) -> None:
        """Send them all, or as many as the budget allows; raises LeaseLostError if the claim did not last."""
        self._last_moment = time.monotonic() + budget.left() + _LAST_MOMENT_SECONDS
        self._give_up_worn_out(claimed)
        fit = [n for n in claimed if n.attempt_count < self._settings.max_attempts]
        self._running = {pool.submit(sender.send, n): n for n in fit}
        try:
            while self._running and not budget.over():
                wait(self._running, timeout=min(_TICK_SECONDS, budget.left()))
                self._settle()
                self._renew()
            if self._running:
                self._stop()
        finally:
            for future in self._running:
                future.cancel()

    def _give_up_worn_out(self, claimed: Sequence[Notification]) -> None:
        """Those that took their worker with them each time are not tried again."""
        worn_out = [n for n in claimed if n.attempt_count >= self._settings.max_attempts]
        self._fail({n.notification_id: (Verdict(n.attempt_count, None), LEASE_EXPIRED) for n in worn_out})

    def _settle(self) -> None:
        """Write the outcomes that are known."""
        done = {future: n for future, n in self._running.items() if future.done()}
        outcomes = [(n, future.exception()) for future, n in done.items()]
        self._succeed([n.notification_id for n, error in outcomes if error is None])
        self._give_back([n.notification_id for n, error in outcomes if isinstance(error, CircuitOpenError)])
        failures = [(n, error) for n, error in outcomes if error and not isinstance(error, CircuitOpenError)]
        self._fail({n.notification_id: self._judge(n, error) for n, error in failures})
        for future in done:
            del self._running[future]

    def _renew(self) -> None:
        """Keep the claim on what is still being sent."""
        if self._running and time.monotonic() - self._renewed > self._lease / 3:
            rest = _ids(self._running.values())
            self._persist(lambda tx: renew(tx, self._token, rest, self._settings.lease, self._now()))
            self._renewed = time.monotonic()

    def _stop(self) -> None:
        """The budget is over: give back what was not begun, wait a little for the rest, and leave no lease behind."""
        not_begun = {future: n for future, n in self._running.items() if future.cancel()}
        self._running = {future: n for future, n in self._running.items() if future not in not_begun}
        self._give_back(_ids(not_begun.values()))
        wait(self._running, timeout=_GRACE_SECONDS)
        self._settle()
        late = RetryableError("no answer before the worker had to stop")
        self._fail({n.notification_id: self._judge(n, late) for n in self._running.values()})
        self._running = {}

    def _judge(self, notification: Notification, error: BaseException) -> tuple[Verdict, str]:
        """An error that no sender should raise is a bug that a later version may have mended: temporary.

        While the receiver fails for everybody it is not this notification's fault: put off, and no attempt is counted.
        """
        if not isinstance(error, RejectedError | RetryableError):
            log.error("sender failed", notification_id=str(notification.notification_id), reason=repr(error))
        attempts = notification.attempt_count
        if isinstance(error, RetryableError) and self._breaker is not None and not self._breaker.closed:
            verdict = Verdict(attempts, self._settings.backoff.delay(attempts + 1, self._rand))
        else:
            verdict = judge(self._settings, attempts, self._rand, permanent=isinstance(error, RejectedError))
        return verdict, (str(error) or repr(error))[:_LONGEST_ERROR].replace("\x00", "")

    def _succeed(self, sent: Sequence[UUID]) -> None:
        def write(tx: Connection) -> None:
            changed = mark_sent(tx, self._token, sent, self._now())
            self.counts["sent"] += changed
            fence(changed, len(sent), "finish notifications")

        if sent:
            self._persist(write)

    def _give_back(self, untried: Sequence[UUID]) -> None:
        if untried:
            self._persist(lambda tx: release(tx, self._token, untried))
            self.counts["released"] += len(untried)

    def _fail(self, failures: Failures) -> None:
        def write(tx: Connection) -> None:
            with tx.transaction():
                changed, given_up = mark_failed(tx, self._token, failures, self._now())
                write_dead_letters(tx, given_up, self._now())
            self.counts["failed"] += len(given_up)
            self.counts["retried"] += changed - len(given_up)
            for notification_id in given_up:
                log.error(
                    "notification failed", notification_id=str(notification_id), reason=failures[notification_id][1]
                )
            fence(changed, len(failures), "fail notifications")

        if failures:
            self._persist(write)

    def _persist(self, write: Callable[[Connection], None]) -> None:
        """Write, through a short absence of PostgreSQL too: what was sent and not recorded would be sent again."""
        pause = Pause()
        while True:
            try:
                with self._database.session() as tx:
                    write(tx)
            except LeaseLostError:
                raise
            except RetryableError:
                if time.monotonic() >= min(self._renewed + self._lease, self._last_moment):
                    raise
                time.sleep(pause.next())
            else:
                return


def _ids(notifications: Iterable[Notification]) -> list[UUID]:
    return [n.notification_id for n in notifications]
