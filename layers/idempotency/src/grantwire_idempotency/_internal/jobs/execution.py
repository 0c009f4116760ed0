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

The engine contains no I/O; see `steps`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.backoff import Backoff
from grantwire_idempotency._internal.foundation.defaults import DEFAULT_ORDER_TTL
from grantwire_idempotency._internal.foundation.fail_mode import FailMode
from grantwire_idempotency._internal.foundation.logs import key_fingerprint
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
from grantwire_idempotency._internal.foundation.steps import Ending, Shielded
from grantwire_idempotency._internal.foundation.wiring import is_async_store
from grantwire_idempotency._internal.jobs.claims import HeldClaim, set_current_claim
from grantwire_idempotency._internal.jobs.late_records import LateRecords
from grantwire_idempotency._internal.jobs.work import describe
from grantwire_idempotency._internal.metrics.interface import SafeMetrics, default_metrics
from grantwire_idempotency._internal.stores.interface import MAX_KEY_LENGTH, Claim, Duplicate, InProgress
from grantwire_idempotency.errors import (
    BadRequestError,
    BusyError,
    CircuitOpenError,
    GrantwireError,
    InternalError,
    LeaseLostError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics
    from grantwire_idempotency._internal.stores.interface import AsyncStore, CheckResult, Key, Store

# Attempts to store the outcome of the work. The delays of 0.2 s and 0.4 s are long enough for a short interruption and
# short enough for a waiting caller.
_MAX_ATTEMPTS = 3
_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(milliseconds=400), timedelta(0), 1, 1)
# How long a call waits for a free connection, beside the wait of a pool, and its delays.
_BUSY_WAIT = timedelta(seconds=5)
_BUSY_BACKOFF = Backoff(timedelta(milliseconds=20), timedelta(milliseconds=500), timedelta(0), 0.5, 1.5)
_JSON = JsonSerializer()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a message or a call.

    If `replayed` is true, the work was not done again and `value` is the stored result. If the dead-letter hook of a
    consumer took the message, `dead_letter` is the error and there is no value.
    """

    value: Any = None
    replayed: bool = False
    dead_letter: Exception | None = None


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """What a job or a consumer decides about its runs; `metrics` and `logger` default to those of the library."""

    name: str
    ttl: timedelta
    fail_mode: FailMode
    order_ttl: timedelta = DEFAULT_ORDER_TTL
    metrics: IdempotencyMetrics | None = None
    serializer: Serializer = _JSON
    logger: LibraryLogger | None = None


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
        self._sleep = sleep if sleep is not None else asyncio.sleep if is_async_store(store) else time.sleep
        self._clock = clock
        self._late = LateRecords(store, settings.name, settings.ttl, settings.order_ttl, self._logger)

    def run(
        self,
        key: Key,
        lease: timedelta,
        work: Callable[[], Steps[Any]],
        recognise: Callable[[Claim], Outcome | None] | None = None,
    ) -> Steps[Outcome]:
        """Do the work, unless it is already done. The key is claimed for `lease`.

        If `recognise` returns an outcome for the claim, the work is not done and the key is released with the same
        error. Raises RequestInProgressError if another run has claimed the key, and the error of the work if it fails.
        """
        claim = Claim(self._scope_key(key))
        check = yield from self._check_key(claim, lease)
        if check is None:
            return (yield from self._run_unguarded(claim, work))
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
            yield from self._release(check, check.last_error or "")
            return known
        restore = set_current_claim(HeldClaim(check, self._store.extend))
        try:
            value = yield from work()
        except BaseException as error:
            yield from self._release(check, describe(error))
            raise
        finally:
            restore()
        yield from self._complete(check, value)
        return Outcome(value)

    def flush(self) -> None:
        """Send the metrics. Call it once for each call or batch."""
        self._metrics.flush()

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

    def _scope_key(self, key: Key) -> Key:
        """Add the name of the job, so that two jobs never share a key."""
        max_length = MAX_KEY_LENGTH - len(self.name) - 1
        if len(key.value) > max_length:
            raise BadRequestError(f"the idempotency key must have at most {max_length} characters")
        return key.scoped(self.name)

    def _check_key(self, claim: Claim, lease: timedelta) -> Steps[CheckResult | None]:
        """Check the key; return None if the store is unavailable and the fail mode is OPEN.

        A check that does not return may have claimed the key, so every other end of it releases the key.
        """
        logger = self._logger
        if self._late:
            yield from self._late.write(claim.key.value)
        started = time.perf_counter()
        try:
            check = yield from self._check_twice(claim, lease)
            seconds = time.perf_counter() - started
            if self._late:
                yield from self._late.write()
        except Exception as error:
            self._metrics.record_check(self.name, "error", time.perf_counter() - started)
            if not isinstance(error, GrantwireError):  # a time limit of the user
                yield from self._release(claim, describe(error))
            if not isinstance(error, RetryableError):
                raise
            fields = {"error": str(error), "task_type": self.name}
            if isinstance(error, BusyError):
                logger.warning("no connection for idempotency check, not processing", extra=fields)
                raise
            if self._settings.fail_mode is FailMode.CLOSED:
                if not isinstance(error, CircuitOpenError):
                    self._late.add_failure(claim, "the check was not answered")
                logger.error("idempotency check failed", extra=fields)  # noqa: TRY400 - an outage needs no traceback
                raise
            logger.warning("idempotency check failed, processing anyway", extra=fields)
            self._metrics.record_unguarded_run(self.name)
            return None
        except BaseException as error:
            yield from self._release(claim, describe(error))
            raise
        self._metrics.record_check(
            self.name, "duplicate" if isinstance(check, Duplicate | InProgress) else "new", seconds
        )
        return check

    def _check_twice(self, claim: Claim, lease: timedelta) -> Steps[CheckResult]:
        """Check the key, and once more with the same token if the store did not answer: it may have claimed the key."""
        call = lambda: self._store.check(claim.key, lease, claim.token)  # noqa: E731 - the same call twice
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
                self._late.add_failure(claim, "the check was not answered")
                raise

    def _wait_while_busy(self, call: Call) -> Steps[Any]:
        """Call the store; while no connection is free, call it again, for a limited time."""
        deadline = self._clock() + _BUSY_WAIT.total_seconds()
        attempt = 0
        while True:
            attempt += 1
            try:
                return (yield call)
            except BusyError:
                delay = _BUSY_BACKOFF.delay(attempt, random.random).total_seconds()
                if self._clock() + delay > deadline:
                    raise
            yield partial(self._sleep, delay)

    def _complete(self, claim: Claim, value: Any) -> Steps[None]:
        """Store the value. If the run is interrupted meanwhile, raise the interruption afterwards (C24)."""
        interruption = None
        try:
            try:
                result = self._dump(value)
            except (TypeError, ValueError, RecursionError, GrantwireError):
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                interruption, result = error, self._dump(value)
            yield from self._store_result(claim, result)
        except (TypeError, ValueError, RecursionError, RejectedError) as error:
            # The effect has happened: complete the key without a result, so that a duplicate does not repeat it.
            yield from self._store_result(claim, None)
            raise InternalError(
                f"the work of {self.name} is done, but its result cannot be stored: return JSON values only ({error})"
            ) from error
        except InternalError:
            with contextlib.suppress(InternalError, LeaseLostError):
                yield from self._store_result(claim, None)
            raise
        if interruption is not None:
            raise interruption

    def _dump(self, value: Any) -> str | None:
        return None if value is None else self._settings.serializer.dump(value)

    def _store_result(self, claim: Claim, result: str | None) -> Steps[None]:
        logger = self._logger
        arguments = (claim, result, self._settings.ttl, self._settings.order_ttl)
        ending = yield from self._call_store(lambda: self._store.store_result(*arguments))
        error = ending.error
        if isinstance(error, LeaseLostError):
            logger.error(
                "claim expired during processing, effect may be duplicated",
                extra=self._log_fields(claim),
            )
        elif isinstance(error, RetryableError):
            self._late.add_result(claim, result)
            logger.log(
                logging.WARNING if self._settings.fail_mode is FailMode.OPEN else logging.ERROR,
                "could not store result, duplicate runs again after claim expires",
                extra={**self._log_fields(claim), "error": str(error)},
            )
            error = None
        elif error is not None and error is ending.interruption:
            self._late.add_result(claim, result)
        _raise(ending.interruption or error)

    def _release(self, claim: Claim, error: str) -> Steps[None]:
        """Release the key. An error of the store is only logged, so that the caller gets the error of the work."""
        logger = self._logger
        arguments = (claim, error, self._settings.ttl)
        ending = yield from self._call_store(lambda: self._store.store_failure(*arguments))
        failure = ending.error
        if failure is not None:
            if isinstance(failure, RetryableError) or failure is ending.interruption:
                self._late.add_failure(claim, error)
            logger.error(
                "could not release key after failure, retry must wait until claim expires",
                exc_info=failure,
                extra=self._log_fields(claim),
            )
        _raise(ending.interruption)

    def _call_store(self, call: Call) -> Steps[Ending]:
        """Record the outcome of the work, and retry while the store is unavailable. The calls are safe to repeat.

        An interruption of the run, by a cancellation, a signal or a time limit, ends the waits, but not the record: a
        call that it has ended is made once more. A second one ends that call too, and is the error of the ending.
        """
        interruption: BaseException | None = None
        was_ended = False
        deadline = self._clock() + _BUSY_WAIT.total_seconds()
        attempt = 0
        while True:
            attempt += 1
            ending = yield Shielded(call)
            error, interruption = ending.error, ending.interruption or interruption
            if isinstance(error, BusyError):
                delay = _BUSY_BACKOFF.delay(attempt, random.random).total_seconds()
                is_last = self._clock() + delay > deadline
            elif isinstance(error, RetryableError) and not isinstance(error, LeaseLostError):
                delay = _BACKOFF.delay(attempt, random.random).total_seconds()
                is_last = attempt >= _MAX_ATTEMPTS
            elif error is None or isinstance(error, GrantwireError):
                return Ending(error, interruption)
            elif was_ended:
                return Ending(error, error)
            else:
                was_ended, interruption = True, error
                continue
            if is_last or (interruption is not None and attempt >= _MAX_ATTEMPTS):
                return Ending(error, interruption)
            if interruption is None:
                try:
                    yield partial(self._sleep, delay)
                except GeneratorExit:
                    raise
                except BaseException as interrupted:  # noqa: BLE001 - raised after the record
                    interruption = interrupted

    def _parse_result(self, result: str | None) -> Any:
        try:
            return None if result is None else self._settings.serializer.load(result)
        except ValueError as error:
            raise InternalError("the stored result cannot be read by the serializer of this job") from error

    def _log_fields(self, claim: Claim) -> dict[str, Any]:
        """Return the fields of every log line about a claim. The key itself is never logged."""
        return {"key": key_fingerprint(claim.key.value), "task_type": self.name}


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
