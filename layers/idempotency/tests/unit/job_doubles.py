"""A job whose store can fail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from grantwire_idempotency import (
    FailMode,
    Key,
    KeyState,
    MemoryStore,
    Outcome,
)
from grantwire_idempotency._internal.foundation.steps import drive
from grantwire_idempotency._internal.jobs.execution import Execution
from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
from grantwire_idempotency._internal.jobs.work import call_once
from layers.idempotency.tests.unit.doubles import FailingStore, FakeTime, RecordedMetrics

HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=1)
KEY = Key("order:1")
DOWN = "temporarily unavailable"


class Job:
    """A job with a store that can fail; it records its runs."""

    def __init__(self, fail_mode: FailMode = FailMode.CLOSED, **options: Any) -> None:
        self.time = FakeTime()
        self.store = FailingStore(MemoryStore(clock=self.time.clock))
        self.metrics = RecordedMetrics()
        self.runs = 0
        wiring: dict[str, Any] = {"name": "job", "ttl": HOUR, "metrics": self.metrics} | options
        settings = ExecutionSettings(fail_mode=fail_mode, **wiring)
        self.execution = Execution(self.store, settings, sleep=self.time.sleep, clock=self.time.clock)

    def run(self, value: Any = "done", key: Key = KEY) -> Outcome:
        """Call the job."""

        def work() -> Any:
            self.runs += 1
            if isinstance(value, BaseException):
                raise value
            return value() if callable(value) else value

        return drive(self.execution.run(key, LEASE, lambda: call_once(work, is_async=False)))

    def state(self, key: str = "job:order:1") -> KeyState | None:
        """Return the state of the key in the store."""
        return self.store.inner.get_result(Key(key))
