"""One guarded run: check the key, do the work, store the result. The wrapper and the consumer are built on it.

    check ─▶ Claim ─▶ work ─▶ returns: store the result, which every later check returns
      │                 └───▶ raises: release the key and raise the error
      ├────▶ Duplicate: return the stored result without work
      ├────▶ InProgress: raise RequestInProgressError
      └────▶ store unavailable: OPEN runs the work unguarded and counts it, CLOSED raises

If the work is done but the store does not take the result, the run still succeeds: an error would make the caller
repeat the effect.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import time
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.backoff import Backoff
from grantwire_idempotency.errors import (
    BadRequestError,
    InternalError,
    LeaseLostError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)
from grantwire_idempotency.fail_mode import FailMode
from grantwire_idempotency.logs import key_fingerprint, logger
from grantwire_idempotency.metrics import SafeMetrics
from grantwire_idempotency.stores.interface import MAX_KEY_LENGTH, Duplicate, InProgress, Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.stores.interface import CheckResult, Claim, Store

# Attempts to store the outcome of the work. The delays of 0.2 s and 0.4 s are long enough for a short interruption and
# short enough for a waiting caller.
_MAX_ATTEMPTS = 3
_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(milliseconds=400), timedelta(0), 1, 1)
# A claim lasts this much longer than the remaining time of the Lambda function, so it outlives a run that times out.
LEASE_MARGIN = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a message or a call.

    If `replayed` is true, the work was not done again and `value` is the stored result. If the dead-letter hook of a
    consumer took the message, `dead_letter` is the error and there is no value.
    """

    value: Any = None
    replayed: bool = False
    dead_letter: Exception | None = None


class Execution:
    """Runs work once for each key of the job `name`, as far as the store can guarantee it.

    `metrics` defaults to PowertoolsMetrics, which is imported only then.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        ttl: timedelta,
        fail_mode: FailMode,
        metrics: IdempotencyMetrics | None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._store = store
        self._ttl = ttl
        self._fail_mode = fail_mode
        self._metrics = SafeMetrics(_default_metrics() if metrics is None else metrics)
        self._sleep = sleep

    def run(self, key: Key, lease: timedelta, work: Callable[[], Any]) -> Outcome:
        """Do the work, unless it is already done. The key is claimed for `lease`.

        Raises RequestInProgressError if another run has claimed the key, and the error of the work if it fails.
        """
        check = self._check_key(self._scope_key(key), lease)
        if check is None:
            return Outcome(work())
        if isinstance(check, Duplicate):
            fields = {"idempotency_key": check.key.value, "task_type": self.name}
            logger.debug("duplicate task skipped", extra=fields)
            return Outcome(_parse_result(check.result), replayed=True)
        if isinstance(check, InProgress):
            seconds = check.free_in.total_seconds()
            raise RequestInProgressError(
                f"the same work is in progress; retry when it has ended, in {seconds:.0f} s at the latest"
            )
        try:
            value = work()
        except BaseException as error:
            self._release(check, error)
            raise
        self._complete(check, value)
        return Outcome(value)

    def flush(self) -> None:
        """Send the metrics. Call it once for each call or batch."""
        self._metrics.flush()

    def _scope_key(self, key: Key) -> Key:
        """Add the name of the job, so that two jobs never share a key."""
        max_length = MAX_KEY_LENGTH - len(self.name) - 1
        if len(key.value) > max_length:
            raise BadRequestError(f"the idempotency key must have at most {max_length} characters")
        return replace(key, value=f"{self.name}:{key.value}", message_type=self.name)

    def _check_key(self, key: Key, lease: timedelta) -> CheckResult | None:
        """Check the key; return None if the store is unavailable and the fail mode is OPEN."""
        started = time.perf_counter()
        try:
            check = self._store.check(key, lease)
        except Exception as error:
            self._metrics.record_check(self.name, "error", time.perf_counter() - started)
            if not isinstance(error, RetryableError):
                raise
            fields = {"error": str(error), "task_type": self.name}
            if self._fail_mode is FailMode.CLOSED:
                logger.error("idempotency check failed", extra=fields)  # noqa: TRY400 - an outage needs no traceback
                raise
            logger.warning("idempotency check failed, processing anyway", extra=fields)
            self._metrics.record_unguarded_run(self.name)
            return None
        seconds = time.perf_counter() - started
        self._metrics.record_check(
            self.name, "duplicate" if isinstance(check, Duplicate | InProgress) else "new", seconds
        )
        return check

    def _complete(self, claim: Claim, value: Any) -> None:
        try:
            result = None if value is None else json.dumps(value, allow_nan=False)
            self._store_result(claim, result)
        except (TypeError, ValueError, RecursionError, RejectedError) as error:
            # The effect has happened: complete the key without a result, so that a duplicate does not repeat it.
            self._store_result(claim, None)
            raise InternalError(
                f"the work of {self.name} is done, but its result cannot be stored: return JSON values only ({error})"
            ) from error
        except InternalError:
            with contextlib.suppress(InternalError, LeaseLostError):
                self._store_result(claim, None)
            raise

    def _store_result(self, claim: Claim, result: str | None) -> None:
        try:
            self._call_store(lambda: self._store.store_result(claim, result, self._ttl))
        except LeaseLostError:
            logger.error(  # noqa: TRY400 - the error propagates
                "claim expired during processing, effect may be duplicated",
                extra=self._log_fields(claim),
            )
            raise
        except RetryableError as error:
            logger.log(
                logging.WARNING if self._fail_mode is FailMode.OPEN else logging.ERROR,
                "could not store result, duplicate runs again after claim expires",
                extra={**self._log_fields(claim), "error": str(error)},
            )

    def _release(self, claim: Claim, error: BaseException) -> None:
        """Release the key. An error of the store is only logged, so that the caller gets the error of the work."""
        try:
            self._call_store(lambda: self._store.store_failure(claim, _describe(error), self._ttl))
        except Exception:
            logger.exception(
                "could not release key after failure, retry must wait until claim expires",
                extra=self._log_fields(claim),
            )

    def _call_store(self, call: Callable[[], None]) -> None:
        """Call the store, and retry while it is unavailable. Both calls are safe to repeat."""
        for attempt in range(1, _MAX_ATTEMPTS):
            try:
                return call()
            except LeaseLostError:
                raise
            except RetryableError:
                self._sleep(_BACKOFF.delay(attempt, random.random).total_seconds())
        return call()

    def _log_fields(self, claim: Claim) -> dict[str, Any]:
        """Return the fields of every log line about a claim. The key itself is never logged."""
        return {"key": key_fingerprint(claim.key.value), "task_type": self.name}


def _default_metrics() -> IdempotencyMetrics:
    from grantwire_idempotency.powertools import PowertoolsMetrics  # noqa: PLC0415 - an optional package

    return PowertoolsMetrics()


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


def _parse_result(result: str | None) -> Any:
    try:
        return None if result is None else json.loads(result)
    except ValueError as error:
        raise InternalError("the stored result is not JSON") from error


def _describe(error: BaseException) -> str:
    """Return the type and the message of an error."""
    return "".join(traceback.format_exception_only(error)).strip()
