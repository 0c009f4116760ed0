"""C30: `disabled` turns idempotency off, for tests of the work itself, and nobody can overlook that it does."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import (
    AsyncMemoryStore,
    IdempotentConsumer,
    Key,
    Message,
    RetryPolicy,
    current_async_claim,
    current_claim,
    disabled,
    idempotent,
)
from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE
from layers.idempotency.tests.unit.doubles import FailingStore, RecordedMetrics, logged

if TYPE_CHECKING:
    from collections.abc import Callable


def make_job(store: FailingStore, runs: list[str], metrics: RecordedMetrics) -> Callable[[str], str]:
    """Return a job that uses its claim."""

    @idempotent(store, key=str, name="job", metrics=metrics)
    def job(order: str) -> str:
        current_claim().extend(DEFAULT_LEASE)
        runs.append(f"{order} {current_claim().fence}")
        return order

    return job


def test_every_call_runs_and_no_store_is_used(caplog: pytest.LogCaptureFixture) -> None:
    """C30: also in another thread; each run is logged and counted. Afterwards, keys count again."""
    store, metrics, runs = FailingStore(), RecordedMetrics(), list[str]()
    job = make_job(store, runs, metrics)
    with disabled():
        assert [job("o-1"), job("o-1")] == ["o-1", "o-1"]
        thread = threading.Thread(target=job, args=("o-1",))
        thread.start()
        thread.join()
    assert runs == ["o-1 1"] * 3
    assert store.calls == []
    assert metrics.unguarded_runs == ["job"] * 3
    lines = logged(caplog, "WARNING", "ERROR")
    assert [line["message"] for line in lines] == [
        "idempotency is disabled, every repeat runs again",
        *["idempotency is disabled, processing without it"] * 3,
    ]
    assert [line["level"] for line in lines] == ["ERROR", *["WARNING"] * 3]
    assert [job("o-1"), job("o-1")] == ["o-1", "o-1"]
    assert len(runs) == 4


def test_block_ends_with_an_error_and_blocks_can_be_nested() -> None:
    """C30: a test that fails does not disable the next one."""
    store, runs = FailingStore(), list[str]()
    job = make_job(store, runs, RecordedMetrics())

    def fail() -> None:
        with disabled():
            with disabled():
                job("o-1")
            job("o-1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.calls == []
    job("o-1")
    assert store.calls[0] == "check"


def test_consumers_and_coroutines_are_disabled_too() -> None:
    """C30: retries and the dead-letter hook work as before."""
    store, seen, dead = FailingStore(), list[str](), list[str]()

    def process(message: Message) -> None:
        seen.append(message.id)
        raise OSError("no")

    consumer = IdempotentConsumer(
        store,
        process,
        RecordedMetrics(),
        name="consumer",
        retry=RetryPolicy(max_attempts=2),
        dead_letter=lambda message, _error: dead.append(message.id),
        sleep=lambda _: None,
    )

    @idempotent(AsyncMemoryStore(), key=str, name="job", metrics=RecordedMetrics())
    async def job(order: str) -> str:
        await current_async_claim().extend(DEFAULT_LEASE)
        seen.append(order)
        return order

    async def call_twice() -> None:
        await job("o-1")
        await job("o-1")

    with disabled():
        assert consumer.process_batch([Message("m-1"), Message("m-1")]) == []
        asyncio.run(call_twice())
    assert seen == ["m-1"] * 4 + ["o-1"] * 2
    assert dead == ["m-1"] * 2
    assert store.inner.get_result(Key("consumer:m-1")) is None
