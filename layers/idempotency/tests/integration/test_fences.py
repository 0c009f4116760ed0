"""C25: the fencing numbers of claims and locks only grow, however long an owner waited for its key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from redis import Redis

from grantwire_idempotency import Claim, Key, PostgresLocks, PostgresStore, RedisLocks, RedisStore
from infra.local.system.processes import wait_until
from tests.support.module_database import database_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import LiteralString

    from grantwire_idempotency import LockManager, Store
    from tests.support.valkey import ValkeyServer

__all__ = ["database_url"]

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
KEY = Key("job")

_BLOCKED = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
)


class Owner(Protocol):
    """An owner of the key, of one kind."""

    def take(self) -> int:
        """Take the free key and return the fencing number."""

    def end(self) -> None:
        """Let the key be free, if its row can stay on the server."""

    def delete(self) -> None:
        """Free the key, and delete its row."""


class LockOwner:
    """Takes the key as a lock."""

    def __init__(self, locks: LockManager) -> None:
        self._locks = locks

    def take(self) -> int:
        """See `Owner`."""
        self._lock = self._locks.acquire(KEY.value, HOUR)
        return self._lock.fence

    def end(self) -> None:
        """See `Owner`. A released lock has no row."""

    def delete(self) -> None:
        """See `Owner`."""
        self._lock.release()


class ClaimOwner:
    """Takes the key as a claim."""

    def __init__(self, open_store: Callable[[Callable[[], datetime]], Store]) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._store = open_store(lambda: self._now)

    def take(self) -> int:
        """See `Owner`."""
        check = self._store.check(KEY, HOUR)
        assert isinstance(check, Claim)
        self._claim = check
        return check.fence

    def end(self) -> None:
        """See `Owner`."""
        self._store.store_failure(self._claim, "no", timedelta(milliseconds=1))

    def delete(self) -> None:
        """See `Owner`. The cleanup deletes the row of a failure that has expired."""
        self.end()
        self._now += MINUTE
        self._store.cleanup()


class Held:
    """A StatementRunner that leaves its transaction open, so its rows stay locked."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """See `StatementRunner`."""
        row: tuple[Any, ...] | None = self._connection.execute(statement, parameters).fetchone()
        assert row is not None
        return row


class Overtaken(Redis):
    """A client whose every command is overtaken by another owner, as if it waited for the server."""

    def overtake(self) -> None:
        """Let the other owner take and free the key; replaced by a test."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Let the other owner go first."""
        self.overtake()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


class FenceTests:
    """The tests of both servers. A subclass provides the fixture `hand_over`."""

    @pytest.fixture(params=["lock", "claim"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        """Return the kind of owner."""
        return str(request.param)

    @pytest.fixture
    def hand_over(self) -> Callable[[], list[int]]:
        """Return a function that lets one owner wait while others take and free the key; the last number is its own."""
        raise NotImplementedError

    def test_owner_that_waited_has_the_highest_number(self, hand_over: Callable[[], list[int]]) -> None:
        """C25: it asked before its predecessor had the key, and gets the key after it."""
        numbers = hand_over()
        assert len(numbers) >= 3
        assert numbers == sorted(set(numbers)), numbers
        assert numbers[0] > 0


class TestPostgres(FenceTests):
    """The waiting statement finds that the row that it waited for is gone, and inserts one."""

    @pytest.fixture
    def hand_over(self, kind: str, database_url: str) -> Iterator[Callable[[], list[int]]]:
        """Return the function; the predecessor works in one open transaction, for which the other owner waits."""

        def owner(connection: Any) -> Owner:
            if kind == "lock":
                return LockOwner(PostgresLocks(connection))
            return ClaimOwner(lambda clock: PostgresStore(connection, clock=clock))

        with ExitStack() as stack:
            thread = stack.enter_context(ThreadPoolExecutor(1))
            held, connection, observer = (stack.enter_context(psycopg.connect(database_url)) for _ in range(3))
            predecessor, waiter = owner(Held(held)), owner(connection)
            observer.autocommit = True

            def run() -> list[int]:
                first = predecessor.take()
                predecessor.end()
                held.commit()
                predecessor.delete()
                waiting = thread.submit(waiter.take)
                assert wait_until(lambda: waiting.done() or observer.execute(_BLOCKED).fetchall() != [], 60)
                assert not waiting.done(), waiting.result()
                second = predecessor.take()
                predecessor.delete()
                held.commit()
                numbers = [first, second, waiting.result(60)]
                waiter.delete()
                return numbers

            yield run


class TestRedis(FenceTests):
    """A script is atomic, so an owner can only be overtaken before one of its commands."""

    @pytest.fixture
    def hand_over(self, kind: str, valkey_server: ValkeyServer) -> Iterator[Callable[[], list[int]]]:
        """Return the function; the predecessor takes and frees the key before each command of the other owner."""

        def owner(client: Redis) -> Owner:
            return (
                LockOwner(RedisLocks(client))
                if kind == "lock"
                else ClaimOwner(lambda _: RedisStore(client, fences=True))
            )

        with Redis.from_url(valkey_server.url) as client, Overtaken.from_url(valkey_server.url) as late:
            client.flushall()
            client.script_flush()
            predecessor, waiter = owner(client), owner(late)

            def run() -> list[int]:
                numbers: list[int] = []

                def overtake() -> None:
                    numbers.append(predecessor.take())
                    predecessor.delete()

                overtake()
                late.overtake = overtake
                last = waiter.take()
                return [*numbers, last]

            yield run
