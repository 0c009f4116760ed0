"""One guarded run: check the key, do the work, store the result. The wrapper and the consumer are built on it.

    check ─▶ Claim ─▶ work ─▶ returns: store the result, which every later check returns
      │                 └───▶ raises: release the key and raise the error
      ├────▶ Duplicate: return the stored result without work
      ├────▶ InProgress: raise RequestInProgressError
      ├────▶ no connection to the store is free: wait, then raise BusyError, in every fail mode
    └────▶ store unavailable: OPEN runs the work unguarded and counts it, CLOSED raises

If the work is done but the store does not take the result, the run still succeeds: an error would make the caller
repeat the effect. `late_records` writes what the store did not take before the next check of the same process.

An interruption while the outcome is stored, such as a cancellation or a signal, is raised when it is stored (C24).

The engine contains no I/O; see `steps`. `key_checks` has the check, `recording` what follows the work.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from grantwire_idempotency._internal.foundation.escaping import escape
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.type_parameters import Value
from grantwire_idempotency._internal.foundation.wiring import is_async_store
from grantwire_idempotency._internal.jobs.claims import AsyncHeldClaim, HeldClaim, set_current_claim
from grantwire_idempotency._internal.jobs.key_checks import KeyCheck
from grantwire_idempotency._internal.jobs.late_records import LateRecords
from grantwire_idempotency._internal.jobs.recording import Progress, Recorder
from grantwire_idempotency._internal.jobs.switch import is_disabled
from grantwire_idempotency._internal.jobs.work import describe
from grantwire_idempotency._internal.metrics.interface import SafeMetrics, default_metrics
from grantwire_idempotency._internal.stores.interface import (
    MAX_KEY_LENGTH,
    Claim,
    Duplicate,
    InProgress,
    require_same_content,
)
from grantwire_idempotency.errors import (
    BadRequestError,
    InternalError,
    RequestInProgressError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Steps
    from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
    from grantwire_idempotency._internal.stores.interface import AsyncStore, Key, Store

_NOT_DONE: Any = object()


@dataclass(frozen=True)  # without slots, as Message
class Outcome(Generic[Value]):
    """The outcome of a message or a call; `value` has the type that the work returns.

    If `replayed` is true, the work was not done again and `value` is the stored result. If the dead-letter hook of a
    consumer took the message, `dead_letter` is the error and there is no value. The stored result of an entity can
    expire before its version does; then there is no value either.
    """

    value: Value | None = None
    replayed: bool = False
    dead_letter: Exception | None = None


class Execution:
    """Runs work once for each key of a job, as far as the store can guarantee it."""

    def __init__(
        self,
        store: Store | AsyncStore,
        settings: ExecutionSettings,
        *,
        sleep: Callable[[float], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self._store: Any = store
        self._settings = settings
        self._logger: LibraryLogger = default_logger if settings.logger is None else settings.logger
        self._metrics = SafeMetrics(default_metrics() if settings.metrics is None else settings.metrics, self._logger)
        self._is_async = is_async_store(store)
        self._max_key_length = MAX_KEY_LENGTH - len(escape(self.name)) - 1
        sleep = sleep if sleep is not None else asyncio.sleep if self._is_async else time.sleep
        self._late = LateRecords(store, settings.name, settings.ttl, settings.order_ttl, self._logger)
        self._recorder = Recorder(store, settings, self._late, self._logger, sleep, clock)
        self._check = KeyCheck(store, settings, self._recorder, self._late, self._metrics, self._logger, sleep, clock)

    def run(
        self,
        key: Key,
        lease: timedelta,
        work: Callable[[], Steps[Any]],
        recognise: Callable[[Claim], Outcome | None] | None = None,
    ) -> Steps[Outcome]:
        """Do the work, unless it is already done. The key is claimed for `lease`.

        If `recognise` returns an outcome for the claim, the work is not done and the key is released with the same
        error. Raises RequestInProgressError if another run has claimed the key, KeyConflictError if its content hash is
        not that of the key's run, and the error of the work if it fails.
        """
        claim = Claim(self._scope_key(key))
        if is_disabled():
            return (yield from self._run_disabled(claim, work))
        check = yield from self._check.check(claim, lease)
        if check is None:
            return (yield from self._run_unguarded(claim, work))
        require_same_content(check)
        if isinstance(check, Duplicate):
            logger = self._logger
            logger.debug("duplicate task skipped", extra={"idempotency_key": check.key.value, "task_type": self.name})
            return Outcome(self._parse_result(check.result), replayed=True)
        if isinstance(check, InProgress):
            seconds = check.free_in.total_seconds()
            raise RequestInProgressError(
                f"the same work is in progress; retry when it has ended, in {seconds:.0f} s at the latest"
            )
        known = recognise(check) if recognise is not None and check.last_error is not None else None
        if known is not None:
            yield from self._recorder.release(check, check.last_error or "")
            return known
        return (yield from self._run_claimed(check, work))

    def flush(self) -> None:
        """Send the metrics. Call it once for each call or batch."""
        self._metrics.flush()

    def _run_claimed(self, claim: Claim, work: Callable[[], Steps[Any]]) -> Steps[Outcome]:
        """Do the work and store its result, or release the key if it fails."""
        held = (AsyncHeldClaim if self._is_async else HeldClaim)(claim, self._store.extend)
        restore = set_current_claim(held)
        value, progress = _NOT_DONE, Progress()
        try:
            value = yield from work()
            yield from self._recorder.complete(claim, value, progress)
        except GeneratorExit:  # the coroutine itself is closed, and can await nothing more
            raise
        except BaseException as error:
            if value is _NOT_DONE:
                yield from self._recorder.release(claim, describe(error))
            elif not progress.has_ended:
                yield from self._recorder.complete(claim, value, progress)
            raise
        finally:
            restore()
        if isinstance(held, AsyncHeldClaim):
            held.require_awaited()
        return Outcome(value)

    def _run_unguarded(self, claim: Claim, work: Callable[[], Steps[Any]]) -> Steps[Outcome]:
        """Do the work without a claim, and write its record when the store is back.

        The failure of the work is a record too: the check may have claimed the key before its response was lost.
        """
        restore = set_current_claim(None)
        try:
            value = yield from work()
        except BaseException as error:
            self._late.add_failure(claim, describe(error))
            raise
        finally:
            restore()
        try:
            result = None if value is None else self._settings.serializer.dump(value)
        except (TypeError, ValueError, RecursionError):
            result = None
        self._late.add_result(claim, result)
        return Outcome(value)

    def _run_disabled(self, claim: Claim, work: Callable[[], Steps[Any]]) -> Steps[Outcome]:
        """Do the work without the store, under a claim that never expires."""
        logger = self._logger
        logger.warning("idempotency is disabled, processing without it", extra={"task_type": self.name})
        self._metrics.record_unguarded_run(self.name)
        own = replace(claim, fence=1)
        held = AsyncHeldClaim(own, _extend_async) if self._is_async else HeldClaim(own, _extend)
        restore = set_current_claim(held)
        try:
            return Outcome((yield from work()))
        finally:
            restore()

    def _scope_key(self, key: Key) -> Key:
        """Add the name of the job, so that two jobs never share a key."""
        if len(key.value) > self._max_key_length:
            raise BadRequestError(f"the idempotency key must have at most {self._max_key_length} characters")
        return key.scoped(self.name)

    def _parse_result(self, result: str | None) -> Any:
        try:
            return None if result is None else self._settings.serializer.load(result)
        except ValueError as error:
            raise InternalError("the stored result cannot be read by the serializer of this job") from error


def _extend(_claim: Claim, _ttl: timedelta) -> None:
    """Do nothing: without the store, no claim expires."""


async def _extend_async(_claim: Claim, _ttl: timedelta) -> None:
    """Do nothing: without the store, no claim expires."""
