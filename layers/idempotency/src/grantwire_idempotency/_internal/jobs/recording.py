"""The record of a run: its result, or the release of its key. It survives an interruption of the run (C24)."""

from __future__ import annotations

import contextlib
import logging
import random
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.backoff import Backoff
from grantwire_idempotency._internal.foundation.fail_mode import FailMode
from grantwire_idempotency._internal.foundation.logs import key_fingerprint
from grantwire_idempotency._internal.foundation.shortages import BUSY_BACKOFF, BUSY_WAIT
from grantwire_idempotency._internal.foundation.steps import Ending, Shielded
from grantwire_idempotency.errors import (
    BusyError,
    GrantwireError,
    InternalError,
    LeaseLostError,
    RejectedError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.jobs.late_records import LateRecords
    from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
    from grantwire_idempotency._internal.stores.interface import Claim

# Attempts to store the outcome of the work. The delays of 0.2 s and 0.4 s are long enough for a short interruption and
# short enough for a waiting caller.
_MAX_ATTEMPTS = 3
_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(milliseconds=400), timedelta(0), 1, 1)


@dataclass(slots=True)
class Progress:
    """Whether the record of an outcome has ended: it is stored, refused, or kept for the next check.

    If not, a signal has interrupted the engine between two steps. Then the record is made again, which is safe.
    """

    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records the outcomes of one job in its store, or keeps them if the store is unavailable."""

    store: Any
    settings: ExecutionSettings
    late: LateRecords
    logger: LibraryLogger
    sleep: Callable[[float], Any]
    clock: Callable[[], float]

    def complete(self, claim: Claim, value: Any, progress: Progress) -> Steps[None]:
        """Store the value. If the run is interrupted meanwhile, raise the interruption afterwards (C24)."""
        interruption = None
        try:
            try:
                result = self._dump(value)
            except (TypeError, ValueError, RecursionError, GrantwireError):
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                interruption, result = error, self._dump(value)
            yield from self._store_result(claim, result, progress)
        except (TypeError, ValueError, RecursionError, RejectedError) as error:
            # The effect has happened: complete the key without a result, so that a duplicate does not repeat it.
            yield from self._store_result(claim, None, progress)
            raise InternalError(
                f"the work of {self.settings.name} is done, but its result cannot be stored:"
                f" return JSON values only ({error})"
            ) from error
        except InternalError:
            with contextlib.suppress(InternalError, LeaseLostError):
                yield from self._store_result(claim, None, progress)
            raise
        if interruption is not None:
            raise interruption

    def _dump(self, value: Any) -> str | None:
        return None if value is None else self.settings.serializer.dump(value)

    def _store_result(self, claim: Claim, result: str | None, progress: Progress) -> Steps[None]:
        logger = self.logger
        arguments = (claim, result, self.settings.ttl, self.settings.order_ttl)
        ending = yield from self._call_store(lambda: self.store.store_result(*arguments))
        error = ending.error
        if isinstance(error, LeaseLostError):
            logger.error(
                "claim expired during processing, effect may be duplicated",
                extra=self._log_fields(claim),
            )
        elif isinstance(error, RetryableError):
            self.late.add_result(claim, result)
            logger.log(
                logging.WARNING if self.settings.fail_mode is FailMode.OPEN else logging.ERROR,
                "could not store result, duplicate runs again after claim expires",
                extra={**self._log_fields(claim), "error": str(error)},
            )
            error = None
        elif error is not None and error is ending.interruption:
            self.late.add_result(claim, result)
        progress.has_ended = True
        _raise(ending.interruption or error)

    def release(self, claim: Claim, error: str) -> Steps[None]:
        """Release the key. An error of the store is only logged, so that the caller gets the error of the work."""
        progress = Progress()
        try:
            yield from self._release(claim, error, progress)
        except GeneratorExit:
            raise
        except BaseException:
            if not progress.has_ended:
                yield from self._release(claim, error, progress)
            raise

    def _release(self, claim: Claim, error: str, progress: Progress) -> Steps[None]:
        logger = self.logger
        arguments = (claim, error, self.settings.ttl)
        ending = yield from self._call_store(lambda: self.store.store_failure(*arguments))
        failure = ending.error
        if failure is not None:
            if isinstance(failure, RetryableError) or failure is ending.interruption:
                self.late.add_failure(claim, error)
            logger.error(
                "could not release key after failure, retry must wait until claim expires",
                exc_info=failure,
                extra=self._log_fields(claim),
            )
        progress.has_ended = True
        _raise(ending.interruption)

    def _call_store(self, call: Call) -> Steps[Ending]:
        """Record the outcome of the work, and retry while the store is unavailable. The calls are safe to repeat.

        An interruption of the run, by a cancellation, a signal or a time limit, ends the waits, but not the record: a
        call that it has ended is made once more. A second one ends that call too, and is the error of the ending.
        """
        interruption: BaseException | None = None
        was_ended = False
        deadline = self.clock() + BUSY_WAIT.total_seconds()
        attempt = 0
        while True:
            attempt += 1
            ending = yield Shielded(call)
            error, interruption = ending.error, ending.interruption or interruption
            if isinstance(error, BusyError):
                delay = BUSY_BACKOFF.delay(attempt, random.random).total_seconds()
                is_last = self.clock() + delay > deadline
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
                    yield partial(self.sleep, delay)
                except GeneratorExit:
                    raise
                except BaseException as interrupted:  # noqa: BLE001 - raised after the record
                    interruption = interrupted

    def _log_fields(self, claim: Claim) -> dict[str, Any]:
        """Return the fields of every log line about a claim. The key itself is never logged."""
        return {"key": key_fingerprint(claim.key.value), "task_type": self.settings.name}


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
