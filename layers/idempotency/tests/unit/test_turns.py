"""C26: callers that take turns on one connection do not wait for the same server one after the other."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from grantwire_idempotency._internal.postgres.deadlines import NoResponseError
from grantwire_idempotency._internal.postgres.turns import AsyncTurns, Turns
from infra.local.system.processes import wait_until

CALLERS = 3


class CountedLock:
    """A lock that counts the callers that want it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.callers = 0

    def __enter__(self) -> None:
        self.callers += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_threads_that_wait_share_the_error() -> None:
    """C26: the next turn tries the server again, and a close never fails."""
    turns = Turns()
    lock = CountedLock()
    turns._lock = lock  # type: ignore[assignment]  # noqa: SLF001 - to know when all of them wait

    def take(number: int) -> str:
        try:
            with turns.take(shares_errors=number > 0):
                return "turn"
        except NoResponseError:
            return "shared"

    def fail() -> None:
        with turns.take():
            results.extend(threads.submit(take, number) for number in range(CALLERS))
            assert wait_until(lambda: lock.callers == CALLERS + 1, 30)
            raise NoResponseError("silent")

    results: list[object] = []
    with ThreadPoolExecutor(CALLERS) as threads:
        with pytest.raises(NoResponseError, match="silent"):
            fail()
        assert [result.result() for result in results] == ["turn", "shared", "shared"]  # type: ignore[attr-defined]
        assert take(1) == "turn"


def test_tasks_that_wait_share_the_error() -> None:
    """C26, C22: as threads."""

    async def main() -> None:
        turns = AsyncTurns()

        async def take() -> str:
            try:
                async with turns.take():
                    return "turn"
            except NoResponseError:
                return "shared"

        async def fail() -> None:
            async with turns.take():
                tasks.extend(asyncio.create_task(take()) for _ in range(CALLERS))
                await asyncio.sleep(0)
                raise NoResponseError("silent")

        tasks: list[asyncio.Task[str]] = []
        with pytest.raises(NoResponseError, match="silent"):
            await fail()
        assert await asyncio.gather(*tasks) == ["shared"] * CALLERS
        assert await take() == "turn"

    asyncio.run(main())
