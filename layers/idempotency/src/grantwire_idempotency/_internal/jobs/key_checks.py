"""The check of a key before a run: repeated if the response was lost, and while no connection is free."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.fail_mode import FailMode
from grantwire_idempotency._internal.foundation.shortages import BUSY_BACKOFF, BUSY_WAIT
from grantwire_idempotency._internal.jobs.work import describe
from grantwire_idempotency._internal.stores.interface import Duplicate, InProgress
from grantwire_idempotency.errors import BusyError, CircuitOpenError, GrantwireError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.jobs.late_records import LateRecords
    from grantwire_idempotency._internal.jobs.recording import Recorder
    from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
    from grantwire_idempotency._internal.metrics.interface import SafeMetrics
    from grantwire_idempotency._internal.stores.interface import CheckResult, Claim


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Checks the keys of one job."""

    store: Any
    settings: ExecutionSettings
    recorder: Recorder
    late: LateRecords
    metrics: SafeMetrics
    logger: LibraryLogger
    sleep: Callable[[float], Any]
    clock: Callable[[], float]

    def check(self, claim: Claim, lease: timedelta) -> Steps[CheckResult | None]:
        """Check the key; return None if the store is unavailable and the fail mode is OPEN.

        A check that does not return may have claimed the key, so every other end of it releases the key.
        """
        logger = self.logger
        if self.late:
            yield from self.late.write(claim.key.value)
        started = time.perf_counter()
        try:
            check = yield from self._check_twice(claim, lease)
            seconds = time.perf_counter() - started
            if self.late:
                yield from self.late.write()
        except Exception as error:
            self.metrics.record_check(self.settings.name, "error", time.perf_counter() - started)
            if not isinstance(error, GrantwireError):  # a time limit of the user
                yield from self.recorder.release(claim, describe(error))
            if not isinstance(error, RetryableError):
                raise
            fields = {"error": str(error), "task_type": self.settings.name}
            if isinstance(error, BusyError):
                logger.warning("no connection for idempotency check, not processing", extra=fields)
                raise
            if self.settings.fail_mode is FailMode.CLOSED:
                if not isinstance(error, CircuitOpenError):
                    self.late.add_failure(claim, "the check was not answered")
                logger.error("idempotency check failed", extra=fields)  # noqa: TRY400 - an outage needs no traceback
                raise
            logger.warning("idempotency check failed, processing anyway", extra=fields)
            self.metrics.record_unguarded_run(self.settings.name)
            return None
        except BaseException as error:
            yield from self.recorder.release(claim, describe(error))
            raise
        self.metrics.record_check(
            self.settings.name, "duplicate" if isinstance(check, Duplicate | InProgress) else "new", seconds
        )
        return check

    def _check_twice(self, claim: Claim, lease: timedelta) -> Steps[CheckResult]:
        """Check the key, and once more with the same token if the store did not answer: it may have claimed the key."""
        call = lambda: self.store.check(claim.key, lease, claim.token)  # noqa: E731 - the same call twice
        try:
            return (yield from self._wait_while_busy(call))  # type: ignore[no-any-return]
        except (CircuitOpenError, BusyError):
            raise
        except RetryableError as lost:
            try:
                return (yield from self._wait_while_busy(call))  # type: ignore[no-any-return]
            except CircuitOpenError:
                raise lost from None  # of the two calls, only the first was made
            except BusyError:
                self.late.add_failure(claim, "the check was not answered")
                raise

    def _wait_while_busy(self, call: Call) -> Steps[Any]:
        """Call the store; while no connection is free, call it again, for a limited time."""
        deadline = self.clock() + BUSY_WAIT.total_seconds()
        attempt = 0
        while True:
            attempt += 1
            try:
                return (yield call)
            except BusyError:
                delay = BUSY_BACKOFF.delay(attempt, random.random).total_seconds()
                if self.clock() + delay > deadline:
                    raise
            yield partial(self.sleep, delay)
