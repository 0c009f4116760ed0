"""Send batches, several at a time, until each line has its final result.

429 and 503 pause every thread, for as long as the installation asks. A line that the installation could not decide,
such as one whose key is in use, is sent again. After `patience` without any result the import stops, and the same
command continues it later.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any

from grantwire_cli.api import error_of, pause_before
from grantwire_cli.errors import CommandError, UnavailableError
from grantwire_cli.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_cli.api import Api, Response
    from grantwire_cli.bulk.batches import Batch

    Window = deque[tuple[Batch, Future[list[dict[str, Any]]]]]

PATH = "/v1/entitlements/batches"
TEMPORARY = {HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)}
REPORT_SECONDS = 5.0
WINDOW = 4  # batches for each thread that may wait for their turn or for the order of results


class Stopped(Exception):  # noqa: N818  # no error: another thread has failed, or the user has interrupted
    """The import has been stopped."""


class Sender:
    """Sends batches of one import."""

    def __init__(
        self,
        api: Api,
        *,
        concurrency: int,
        patience: float,
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._api = api
        self._concurrency = concurrency
        self._patience = patience
        self._notify = notify
        self._clock = clock
        self._sleep = sleep
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._resume_at = 0.0
        self._last_result = clock()
        self._next_report = 0.0
        self._is_limited = False

    def send_all(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, list[dict[str, Any]]]]:
        """Yield each batch with its results, in order, as soon as it and all before it are finished.

        A batch is sent when no unfinished one has one of its entitlements, and the finished ones have been yielded.
        Raises UnavailableError if the installation stays unavailable, AccessError or CommandError if it refuses a
        batch as a whole. What was yielded is final.
        """
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="import")
        window: Window = deque()
        try:
            for batch in batches:
                while True:
                    conflicts = _unfinished_with_entitlements_of(batch, window)
                    while window and window[0][1].done():  # the results of what is finished come before the next batch
                        yield self._take(window)
                    if not conflicts and len(window) < self._concurrency * WINDOW:
                        break
                    wait([*conflicts, *(future for _, future in islice(window, 1))], return_when=FIRST_COMPLETED)
                window.append((batch, pool.submit(self._send, batch)))
            while window:
                yield self._take(window)
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _take(self, window: Window) -> tuple[Batch, list[dict[str, Any]]]:
        batch, future = window.popleft()
        return batch, future.result()

    def _send(self, batch: Batch) -> list[dict[str, Any]]:
        """Return the final result of each item of a batch."""
        results: list[dict[str, Any] | None] = [None] * len(batch.items)
        attempt = 0
        while True:
            attempt += 1
            missing = [number for number, result in enumerate(results) if result is None]
            if not missing:
                return [result for result in results if result is not None]
            self._wait_for_turn()
            pause = self._try(batch, missing, results, attempt)
            if pause is not None:
                self._pause(pause)

    def _try(
        self, batch: Batch, missing: list[int], results: list[dict[str, Any] | None], attempt: int
    ) -> float | None:
        """Send the missing items once and keep the final results; return the pause before the next attempt, if any."""
        try:
            response = self._api.send("POST", PATH, body={"items": [batch.items[number] for number in missing]})
        except UnavailableError as error:
            return self._waited_for(error, pause_before(attempt))
        if response.status != HTTPStatus.OK:
            problem = error_of(response, "POST", PATH)
            if not isinstance(problem, UnavailableError):
                raise problem
            return self._waited_for(problem, pause_before(attempt, response.retry_after))
        found = _results_of(response, len(missing))
        for number, result in zip(missing, found, strict=True):
            results[number] = None if _is_temporary(result) else result
        pause = pause_before(attempt)
        if all(results[number] is None for number in missing):
            self._check_patience(UnavailableError("The installation could not decide any line of a batch."), pause)
        else:
            with self._lock:
                self._last_result = self._clock()
        return pause if None in results else None

    def _wait_for_turn(self) -> None:
        """Wait while all threads pause. Raises Stopped at the end of the import."""
        while (delay := self._resume_at - self._clock()) > 0:
            if self._sleep(self._stop, delay):
                raise Stopped
        if self._stop.is_set():
            raise Stopped

    def _pause(self, seconds: float) -> None:
        with self._lock:
            self._resume_at = max(self._resume_at, self._clock() + seconds)

    def _report(self, error: UnavailableError) -> None:
        """Print why the import waits, once for all threads and not at every attempt."""
        is_limit = error.code == "RATE_LIMITED"
        with self._lock:
            if self._clock() < self._next_report or (is_limit and self._is_limited):
                return
            self._next_report = self._clock() + REPORT_SECONDS
            self._is_limited = self._is_limited or is_limit
        if is_limit:
            self._notify("The limits of this client slow the import down; `grantwire clients limits` changes them.")
        else:
            self._notify(f"{error} Trying again.")

    def _waited_for(self, error: UnavailableError, pause: float) -> float:
        """Report why the import waits, and return the pause before the next attempt."""
        self._check_patience(error, pause)
        self._report(error)
        return pause

    def _check_patience(self, error: UnavailableError, pause: float) -> None:
        """Raise UnavailableError if there was no result for too long, or there can be none before that."""
        if self._clock() + pause - self._last_result > self._patience:
            hint = "Run the same command again to continue where it stopped."
            raise UnavailableError(str(error), hint=hint, code=error.code) from error


def _unfinished_with_entitlements_of(batch: Batch, window: Window) -> list[Future[list[dict[str, Any]]]]:
    """Return the unfinished batches that have an entitlement of this one."""
    unfinished = [(earlier, future) for earlier, future in window if not future.done()]
    return [future for earlier, future in unfinished if not batch.entitlements.isdisjoint(earlier.entitlements)]


def _results_of(response: Response, count: int) -> list[dict[str, Any]]:
    results = response.body.get("results") if isinstance(response.body, dict) else None
    if not isinstance(results, list) or len(results) != count:
        raise CommandError(
            f"The installation did not send a result for each line of {count_of(count, 'line')}.", code="BAD_RESPONSE"
        )
    return results


def _is_temporary(result: dict[str, Any]) -> bool:
    response = result.get("response") or {}
    return result["status_code"] in TEMPORARY or response.get("code") == "REQUEST_IN_PROGRESS"
