"""A relay's connections to its database: one, and a second one in parallel while there is a backlog."""

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
    """The first is used in the event loop; inside `parallel` both are, by threads, and the loop goes on meanwhile."""

    def __init__(self, first: Database, second: Database) -> None:
        self._first = first
        self._second = second
        self._threads: ThreadPoolExecutor | None = None
        self._free: SimpleQueue[Database] = SimpleQueue()
        for database in (first, second):
            self._free.put(database)

    @contextlib.contextmanager
    def parallel(self) -> Iterator[None]:
        """From here on two at a time; the second is open for no longer than this."""
        try:
            with ThreadPoolExecutor(2, thread_name_prefix="relay-database") as self._threads:
                yield
        finally:
            self._threads = None
            self._second.close()

    async def run(self, use: Callable[[Connection], T]) -> T:
        """Use a connection, in autocommit; raises what `Database.session` raises."""
        if self._threads is None:
            with self._first.session() as tx:
                return use(tx)
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._run_in_thread, use)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})  # nothing else may touch the same rows before it has ended
            work.exception()
            raise

    def _run_in_thread(self, use: Callable[[Connection], T]) -> T:
        """There is a connection for each thread."""
        database = self._free.get_nowait()
        try:
            with database.session() as tx:
                return use(tx)
        finally:
            self._free.put(database)
