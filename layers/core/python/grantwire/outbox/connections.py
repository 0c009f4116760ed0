"""The relay's database connections: one, and a second one in parallel while there is a backlog."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection, Database

T = TypeVar("T")


class Connections:
    """Two connections of one relay.

    Outside `parallel`, actions run on the first connection, in the event loop's thread. Inside `parallel`, they run on
    both connections in worker threads, and the event loop is not blocked.
    """

    def __init__(self, first: Database, second: Database) -> None:
        self._first = first
        self._second = second
        self._threads: ThreadPoolExecutor | None = None
        self._free: SimpleQueue[Database] = SimpleQueue()
        for database in (first, second):
            self._free.put(database)

    @contextlib.contextmanager
    def parallel(self) -> Iterator[None]:
        """Run up to two actions at a time inside the block; close the second connection at its end."""
        try:
            with ThreadPoolExecutor(2, thread_name_prefix="relay-database") as self._threads:
                yield
        finally:
            self._threads = None
            self._second.close()

    async def run(self, action: Callable[[Connection], T]) -> T:
        """Run an action on a connection in autocommit mode and return its result.

        Raises the errors of `Database.session`.
        """
        if self._threads is None:
            with self._first.session() as tx:
                return action(tx)
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._run_in_thread, action)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, and the caller must not touch the same rows while it still runs.
            await asyncio.wait({future})
            future.exception()
            raise

    def _run_in_thread(self, action: Callable[[Connection], T]) -> T:
        database = self._free.get_nowait()  # never empty: there are as many connections as threads
        try:
            with database.session() as tx:
                return action(tx)
        finally:
            self._free.put(database)
