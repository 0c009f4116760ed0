"""One guarded run: check the key, do the work, store the result. The wrapper and the consumer are built on it.

    check ─▶ Claim ─▶ work ─▶ returns: store the result, which every later check returns
      │                 └───▶ raises: release the key and raise the error
      ├────▶ Duplicate: return the stored result without work
      ├────▶ InProgress: raise RequestInProgressError
      └────▶ store unavailable: OPEN runs the work unguarded and counts it, CLOSED raises

If the work is done but the store does not take the result, the run still succeeds: an error would make the caller
repeat the effect. What the store did not take is kept and written before the next check of the same process: the result
of a run, unless another run has the key by then, and the release of a claim whose response was lost.

The engine contains no I/O; see `steps`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import time
import traceback
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.backoff import Backoff
from grantwire_idempotency.claims import HeldClaim, set_current_claim
from grantwire_idempotency.defaults import DEFAULT_ORDER_TTL
from grantwire_idempotency.errors import (
    BadRequestError,
    CircuitOpenError,
    ConfigError,
    InternalError,
    LeaseLostError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)
from grantwire_idempotency.fail_mode import FailMode
from grantwire_idempotency.logs import key_fingerprint
from grantwire_idempotency.logs import logger as default_logger
from grantwire_idempotency.metrics import SafeMetrics, default_metrics
from grantwire_idempotency.serializers import JsonSerializer
from grantwire_idempotency.stores.interface import MAX_KEY_LENGTH, Claim, Duplicate, InProgress, Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.logs import LibraryLogger
    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.serializers import Serializer
    from grantwire_idempotency.steps import Call, Steps
    from grantwire_idempotency.stores.interface import AsyncStore, CheckResult, Store

# Attempts to store the outcome of the work. The delays of 0.2 s and 0.4 s are long enough for a short interruption and
# short enough for a waiting caller.
_MAX_ATTEMPTS = 3
_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(milliseconds=400), timedelta(0), 1, 1)
# A claim lasts this much longer than the remaining time of the Lambda function, so it outlives a run that times out.
LEASE_MARGIN = timedelta(seconds=1)
# Outcomes that the store did not take and that wait for the next check. Beyond it the oldest is dropped.
_MAX_PENDING = 1_000
# Between the two calls of the store that write a late result.
_LATE_LEASE = timedelta(seconds=30)
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


class HandledFailureError(Exception):
    """Work that failed and was handled, such as a message that the dead-letter hook took.

    `stored_error` is stored as the failure of the key. A later check returns it with its claim.
    """

    def __init__(self, stored_error: str) -> None:
        super().__init__(stored_error)
        self.stored_error = stored_error


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


@dataclass(frozen=True, slots=True)
class _Pending:
    """An outcome that the store did not take: an error if there is one, else a result."""

    claim: Claim
    result: str | None = None
    error: str | None = None


class Execution:
    """Runs work once for each key of a job, as far as the store can guarantee it."""

    def __init__(
        self,
        store: Store | AsyncStore,
        settings: ExecutionSettings,
        *,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        self.name = settings.name
        self._store: Any = store
        self._settings = settings
        self._metrics = SafeMetrics(default_metrics() if settings.metrics is None else settings.metrics)
        self._logger: LibraryLogger = default_logger if settings.logger is None else settings.logger
        self._sleep = sleep if sleep is not None else asyncio.sleep if is_async_store(store) else time.sleep
        self._pending: deque[_Pending] = deque(maxlen=_MAX_PENDING)

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
        """Do the work without a claim, and write its record when the store is back."""
        restore = set_current_claim(None)
        try:
            value = yield from work()
        finally:
            restore()
        try:
            result = None if value is None else self._settings.serializer.dump(value)
        except (TypeError, ValueError, RecursionError):
            result = None
        self._pending.append(_Pending(claim, result))
        return Outcome(value)

    def _scope_key(self, key: Key) -> Key:
        """Add the name of the job, so that two jobs never share a key."""
        max_length = MAX_KEY_LENGTH - len(self.name) - 1
        if len(key.value) > max_length:
            raise BadRequestError(f"the idempotency key must have at most {max_length} characters")
        return key.scoped(self.name)

    def _check_key(self, claim: Claim, lease: timedelta) -> Steps[CheckResult | None]:
        """Check the key; return None if the store is unavailable and the fail mode is OPEN."""
        logger = self._logger
        if self._pending:
            yield from self._write_pending(claim.key.value)
        started = time.perf_counter()
        try:
            check = yield from self._check_twice(claim, lease)
        except Exception as error:
            self._metrics.record_check(self.name, "error", time.perf_counter() - started)
            if not isinstance(error, RetryableError):
                raise
            fields = {"error": str(error), "task_type": self.name}
            if self._settings.fail_mode is FailMode.CLOSED:
                if not isinstance(error, CircuitOpenError):
                    self._pending.append(_Pending(claim, error="the check was not answered"))
                logger.error("idempotency check failed", extra=fields)  # noqa: TRY400 - an outage needs no traceback
                raise
            logger.warning("idempotency check failed, processing anyway", extra=fields)
            self._metrics.record_unguarded_run(self.name)
            return None
        seconds = time.perf_counter() - started
        self._metrics.record_check(
            self.name, "duplicate" if isinstance(check, Duplicate | InProgress) else "new", seconds
        )
        if self._pending:
            yield from self._write_pending()
        return check

    def _check_twice(self, claim: Claim, lease: timedelta) -> Steps[CheckResult]:
        """Check the key, and once more with the same token if the store did not answer: it may have claimed the key."""
        call = lambda: self._store.check(claim.key, lease, claim.token)  # noqa: E731 - the same call twice
        try:
            return (yield call)  # type: ignore[no-any-return]
        except CircuitOpenError:
            raise
        except RetryableError:
            return (yield call)  # type: ignore[no-any-return]

    def _write_pending(self, key: str | None = None) -> Steps[None]:
        """Write the outcomes that the store did not take, of one key or of all, as far as it takes them now."""
        for outcome in list(self._pending):
            if key is not None and outcome.claim.key.value != key:
                continue
            try:
                self._pending.remove(outcome)
            except ValueError:  # another thread writes it
                continue
            try:
                yield from self._write_late(outcome)
            except LeaseLostError:
                continue  # a later run has the key
            except RetryableError:
                self._pending.append(outcome)
                return
            except Exception:
                logger = self._logger
                logger.exception("could not write late record", extra=self._log_fields(outcome.claim))

    def _write_late(self, outcome: _Pending) -> Steps[None]:
        """Write one outcome. A result needs a live claim, so the key is claimed again, unless another run has it."""
        claim, settings = outcome.claim, self._settings
        if outcome.error is not None:
            error = outcome.error
            yield lambda: self._store.store_failure(claim, error, settings.ttl)
            return
        check = yield lambda: self._store.check(claim.key, _LATE_LEASE, claim.token)
        if isinstance(check, Claim):
            yield lambda: self._store.store_result(check, outcome.result, settings.ttl, settings.order_ttl)

    def _complete(self, claim: Claim, value: Any) -> Steps[None]:
        try:
            result = None if value is None else self._settings.serializer.dump(value)
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

    def _store_result(self, claim: Claim, result: str | None) -> Steps[None]:
        logger = self._logger
        arguments = (claim, result, self._settings.ttl, self._settings.order_ttl)
        try:
            yield from self._call_store(lambda: self._store.store_result(*arguments))
        except LeaseLostError:
            logger.error(  # noqa: TRY400 - the error propagates
                "claim expired during processing, effect may be duplicated",
                extra=self._log_fields(claim),
            )
            raise
        except RetryableError as error:
            self._pending.append(_Pending(claim, result))
            logger.log(
                logging.WARNING if self._settings.fail_mode is FailMode.OPEN else logging.ERROR,
                "could not store result, duplicate runs again after claim expires",
                extra={**self._log_fields(claim), "error": str(error)},
            )

    def _release(self, claim: Claim, error: str) -> Steps[None]:
        """Release the key. An error of the store is only logged, so that the caller gets the error of the work."""
        logger = self._logger
        arguments = (claim, error, self._settings.ttl)
        try:
            yield from self._call_store(lambda: self._store.store_failure(*arguments))
        except Exception as failure:
            if isinstance(failure, RetryableError):
                self._pending.append(_Pending(claim, error=error))
            logger.exception(
                "could not release key after failure, retry must wait until claim expires",
                extra=self._log_fields(claim),
            )

    def _call_store(self, call: Call) -> Steps[None]:
        """Call the store, and retry while it is unavailable. Both calls are safe to repeat."""
        for attempt in range(1, _MAX_ATTEMPTS):
            try:
                yield call
            except LeaseLostError:
                raise
            except RetryableError:
                delay = _BACKOFF.delay(attempt, random.random).total_seconds()
                yield partial(self._sleep, delay)
            else:
                return
        yield call

    def _parse_result(self, result: str | None) -> Any:
        try:
            return None if result is None else self._settings.serializer.load(result)
        except ValueError as error:
            raise InternalError("the stored result cannot be read by the serializer of this job") from error

    def _log_fields(self, claim: Claim) -> dict[str, Any]:
        """Return the fields of every log line about a claim. The key itself is never logged."""
        return {"key": key_fingerprint(claim.key.value), "task_type": self.name}


def is_async_store(store: object) -> bool:
    """Return whether the methods of a store are coroutine functions."""
    return inspect.iscoroutinefunction(getattr(store, "check", None))


def call_once(work: Call, *, is_async: bool) -> Steps[Any]:
    """Do the work. A plain function that returns an awaitable has done nothing yet: refuse it."""
    value = yield work
    if not is_async and hasattr(value, "__await__"):
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigError(
            ["the function returned an awaitable, so its work was not done: decorate a coroutine function"]
        )
    return value


def to_key(key: Key | str | None) -> Key | None:
    """Convert the return value of a key function into a Key; "" and None mean that there is no key."""
    if key is None or key == "":
        return None
    return key if isinstance(key, Key) else Key(key)


def remaining_time(*arguments: object) -> timedelta | None:
    """Return the remaining time of the Lambda function; None if no argument is a Lambda context."""
    for argument in arguments:
        get_remaining = getattr(argument, "get_remaining_time_in_millis", None)
        if callable(get_remaining):
            return timedelta(milliseconds=max(0, get_remaining()))
    return None


def describe(error: BaseException) -> str:
    """Return the text of an error that is stored: its type and its message."""
    if isinstance(error, HandledFailureError):
        return error.stored_error
    return "".join(traceback.format_exception_only(error)).strip()
