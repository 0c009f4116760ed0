"""Threads that start at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def run_concurrently(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(count - 1)` in `count` threads that start together, and return their results in order."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))
