"""Stand-ins for what surrounds a job or a consumer: a clock, a Lambda context, metrics, and a store that fails."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.idempotency import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    import pytest

    from grantwire.idempotency import Check, Key, New, Record
    from grantwire.idempotency.metrics import CheckResult


@dataclass
class Time:
    """A clock that only moves when somebody sleeps or turns it."""

    now: float = 1_000.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        """What time it is."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Pass the time."""
        self.slept.append(seconds)
        self.now += seconds

    def advance(self, length: timedelta) -> None:
        """Let time pass."""
        self.now += length.total_seconds()


@dataclass
class Context:
    """A Lambda's context; the time that is left follows a clock."""

    time: Time
    deadline: float

    def get_remaining_time_in_millis(self) -> int:
        """As Lambda's."""
        return round((self.deadline - self.time.now) * 1000)


@dataclass
class Counted:
    """Metrics that a test can look at."""

    checks: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unguarded_runs: list[str] = field(default_factory=list)
    flushes: int = 0

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        self.checks.append((name, result))
        self.seconds.append(seconds)

    def unguarded(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        self.unguarded_runs.append(name)

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        self.flushes += 1


class Trouble:
    """A store that raises what it is told to: `failing["check"] = [error, error]` for the next two checks."""

    def __init__(self, inner: MemoryStore | None = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self.failing: dict[str, list[Exception]] = {}
        self.calls: list[str] = []

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        self._fail("check")
        return self.inner.check(key, ttl)

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        self._fail("store_result")
        self.inner.store_result(claim, result, ttl)

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._fail("store_failure")
        self.inner.store_failure(claim, error, ttl)

    def get_result(self, key: Key) -> Record | None:
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


def logged(capsys: pytest.CaptureFixture[str], *levels: str) -> list[dict[str, Any]]:
    """The log lines since the last look, of these levels."""
    return [line for line in _lines(capsys) if line.get("level") in levels]


def _lines(capsys: pytest.CaptureFixture[str]) -> Iterator[dict[str, Any]]:
    for line in capsys.readouterr().out.splitlines():
        yield json.loads(line)
