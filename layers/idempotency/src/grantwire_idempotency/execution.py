"""One guarded run: ask the store, do the work, keep the result. The engine under the wrapper and the consumer.

    check ─▶ New ─▶ work ─▶ returns: the result is kept, and every later check gets it
      │               └───▶ raises: the key is free again, the error goes on to the caller
      ├────▶ Duplicate: the first result, without work
      ├────▶ InProgress: RequestInProgressError, try again later
      └────▶ the store is down: OPEN runs the work unguarded and counts it, CLOSED raises

Work whose effect has happened is never reported as failed because of the store: that would make somebody repeat it.
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
from grantwire_idempotency.stores.interface import LONGEST_KEY, Duplicate, InProgress, Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.stores.interface import Check, New, Store

# Between the tries to tell the store what became of the work: 0.2 s and 0.4 s, enough for the hiccup of a failover and
# short enough for a caller who waits.
_TRIES = 3
_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(milliseconds=400), timedelta(0), 1, 1)
# A Lambda that has run into its timeout is gone by then, and its claim of no more use.
AFTER_TIMEOUT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a message or a call.

    `replayed` says that the work was done before and `value` is the first result. `dead_letter` is the error with which
    a consumer's dead-letter hook took the message; then there is no value.
    """

    value: Any = None
    replayed: bool = False
    dead_letter: Exception | None = None


class Execution:
    """Runs work at most once for each key of the job `name`, as far as the store can tell.

    Without `metrics` it counts with Powertools, which is loaded only then.
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
        """Do the work unless it was done before; while it runs, for `lease` at most, nobody else begins it."""
        check = self._check(self._scoped(key), lease)
        if check is None:
            return Outcome(work())
        if isinstance(check, Duplicate):
            fields = {"idempotency_key": check.key.value, "task_type": self.name}
            logger.debug("duplicate task skipped", extra=fields)
            return Outcome(_loaded(check.result), replayed=True)
        if isinstance(check, InProgress):
            seconds = check.free_in.total_seconds()
            raise RequestInProgressError(
                f"the same work is in progress; try again when it is done, in {seconds:.0f} s at the latest"
            )
        try:
            value = work()
        except BaseException as error:
            self._give_back(check, error)
            raise
        self._complete(check, value)
        return Outcome(value)

    def flush(self) -> None:
        """Send the metrics; once for each call or batch."""
        self._metrics.flush()

    def _scoped(self, key: Key) -> Key:
        """The same key of another job is another key."""
        room = LONGEST_KEY - len(self.name) - 1
        if len(key.value) > room:
            raise BadRequestError(f"the idempotency key must have at most {room} characters")
        return replace(key, value=f"{self.name}:{key.value}", message_type=self.name)

    def _check(self, key: Key, lease: timedelta) -> Check | None:
        """What the store says; None if it says nothing and the work is to be done all the same."""
        started = time.perf_counter()
        try:
            check = self._store.check(key, lease)
        except Exception as error:
            self._metrics.checked(self.name, "error", time.perf_counter() - started)
            if not isinstance(error, RetryableError):
                raise
            fields = {"error": str(error), "task_type": self.name}
            if self._fail_mode is FailMode.CLOSED:
                logger.error("idempotency check failed", extra=fields)  # noqa: TRY400 - an outage needs no traceback
                raise
            logger.warning("idempotency check failed, processing anyway", extra=fields)
            self._metrics.unguarded(self.name)
            return None
        seconds = time.perf_counter() - started
        self._metrics.checked(self.name, "duplicate" if isinstance(check, Duplicate | InProgress) else "new", seconds)
        return check

    def _complete(self, claim: New, value: Any) -> None:
        try:
            result = None if value is None else json.dumps(value, allow_nan=False)
            self._keep(claim, result)
        except (TypeError, ValueError, RecursionError, RejectedError) as error:
            # The effect has happened: without a result the key is at least completed, so that nobody repeats it.
            self._keep(claim, None)
            raise InternalError(
                f"the work of {self.name} is done, but its result cannot be kept: return JSON values only ({error})"
            ) from error
        except InternalError:
            with contextlib.suppress(InternalError, LeaseLostError):
                self._keep(claim, None)
            raise

    def _keep(self, claim: New, result: str | None) -> None:
        try:
            self._persist(lambda: self._store.store_result(claim, result, self._ttl))
        except LeaseLostError:
            logger.error(  # noqa: TRY400 - the error is raised on
                "claim expired during processing, effect may be duplicated",
                extra=self._fields(claim),
            )
            raise
        except RetryableError as error:
            logger.log(
                logging.WARNING if self._fail_mode is FailMode.OPEN else logging.ERROR,
                "the work is done, but the store did not take its result: a repeat runs again once the claim has ended",
                extra={**self._fields(claim), "error": str(error)},
            )

    def _give_back(self, claim: New, error: BaseException) -> None:
        """Free the key; whatever happens here, the work's own error is what the caller has to see."""
        try:
            self._persist(lambda: self._store.store_failure(claim, _described(error), self._ttl))
        except Exception:
            logger.exception(
                "could not release key after failure, retry must wait until claim expires",
                extra=self._fields(claim),
            )

    def _persist(self, tell: Callable[[], None]) -> None:
        """Tell the store, and again after a pause if it is out of reach: to tell it twice is to tell it once."""
        for attempt in range(1, _TRIES):
            try:
                return tell()
            except LeaseLostError:
                raise
            except RetryableError:
                self._sleep(_BACKOFF.delay(attempt, random.random).total_seconds())
        return tell()

    def _fields(self, claim: New) -> dict[str, Any]:
        """The fields that every log line about a claim has; never the key itself."""
        return {"key": key_fingerprint(claim.key.value), "task_type": self.name}


def _default_metrics() -> IdempotencyMetrics:
    from grantwire_idempotency.powertools import PowertoolsMetrics  # noqa: PLC0415 - an optional package

    return PowertoolsMetrics()


def key_from(found: Key | str | None) -> Key | None:
    """The key that an author's function returned, text or ready-made; None if it returned "" or None."""
    if found is None or found == "":
        return None
    return found if isinstance(found, Key) else Key(found)


def remaining_time(*arguments: object) -> timedelta | None:
    """What is left of the Lambda's time, if its context is among the arguments."""
    for argument in arguments:
        remaining = getattr(argument, "get_remaining_time_in_millis", None)
        if callable(remaining):
            return timedelta(milliseconds=max(0, remaining()))
    return None


def _loaded(result: str | None) -> Any:
    try:
        return None if result is None else json.loads(result)
    except ValueError as error:
        raise InternalError("the stored result of earlier work is not JSON") from error


def _described(error: BaseException) -> str:
    """What the store keeps of an error: its kind and its message."""
    return "".join(traceback.format_exception_only(error)).strip()
