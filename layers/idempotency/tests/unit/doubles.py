"""Test doubles for a job or a consumer: a clock, a Lambda context, metrics, and a store that fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire_idempotency import MemoryStore

if TYPE_CHECKING:
    from datetime import timedelta

    import pytest

    from grantwire_idempotency import CheckResult, Claim, Key, KeyState
    from grantwire_idempotency._internal.metrics.interface import CheckLabel

_PLAIN_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}


@dataclass
class FakeTime:
    """A clock that advances only when a test sleeps or advances it."""

    now: float = 1_000.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        """Return the current time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock and record the delay."""
        self.slept.append(seconds)
        self.now += seconds

    def advance(self, length: timedelta) -> None:
        """Advance the clock."""
        self.now += length.total_seconds()


@dataclass
class FakeContext:
    """A Lambda context whose remaining time follows a clock."""

    time: FakeTime
    deadline: float

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time, like a Lambda context."""
        return round((self.deadline - self.time.now) * 1000)


@dataclass
class RecordedMetrics:
    """Metrics that record every call."""

    checks: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unguarded_runs: list[str] = field(default_factory=list)
    flushes: int = 0

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        self.checks.append((name, result))
        self.seconds.append(seconds)

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        self.unguarded_runs.append(name)

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        self.flushes += 1


class FailingStore:
    """A store that raises configured errors: `failing["check"] = [error, error]` fails the next two checks."""

    def __init__(self, inner: MemoryStore | None = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self.failing: dict[str, list[Exception]] = {}
        self.calls: list[str] = []

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        self._fail("check")
        return self.inner.check(key, ttl, token)

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        self._fail("store_result")
        self.inner.store_result(claim, result, ttl, order_ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._fail("store_failure")
        self.inner.store_failure(claim, error, ttl)

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        self._fail("extend")
        self.inner.extend(claim, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        self._fail("get_result")
        return self.inner.get_result(key)

    def cleanup(self) -> int:
        """See `Store`."""
        return self.inner.cleanup()

    def _fail(self, method: str) -> None:
        self.calls.append(method)
        if self.failing.get(method):
            raise self.failing[method].pop(0)


def logged(caplog: pytest.LogCaptureFixture, *levels: str) -> list[dict[str, Any]]:
    """Return the library's log lines of these levels since the last call, with all their fields."""
    lines = [_line(record) for record in caplog.records if record.name == "grantwire_idempotency"]
    caplog.clear()
    return [line for line in lines if line["level"] in levels]


def _line(record: logging.LogRecord) -> dict[str, Any]:
    fields = {name: value for name, value in vars(record).items() if name not in _PLAIN_RECORD}
    line = {"level": record.levelname, "message": record.getMessage(), **fields}
    # exc_text is the traceback at the time of logging; exc_info grows while the error propagates to the test.
    return {**line, "exception": record.exc_text} if record.exc_info else line
