"""Threads that start at the same moment, and two transactions that meet step by step."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

T = TypeVar("T")

_WAITS_FOR_LOCK = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"


def run_concurrently(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(count - 1)` in `count` threads that start together, and return their results in order."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


class Met(NamedTuple):
    """The result of an action that met an open transaction, and whether it waited for a lock of it."""

    result: Any
    waited: bool


def meet(
    first: psycopg.Connection[Any],
    second: psycopg.Connection[Any],
    observer: psycopg.Connection[Any],
    action: Callable[[psycopg.Connection[Any]], Any],
    then: Callable[[], object] = lambda: None,
) -> Met:
    """Run `action` on `second` while `first` has an open transaction.

    When the action has ended or waits for a lock, call `then`, commit `first`, and let the action end.
    """
    pid = second.info.backend_pid
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(action, second)
        try:
            assert wait_until(
                lambda: running.done() or bool(observer.execute(_WAITS_FOR_LOCK, (pid,)).fetchall()), 30, every=0.005
            )
            waited = not running.done()
            then()
        finally:
            first.commit()
        return Met(running.result(timeout=30), waited)
