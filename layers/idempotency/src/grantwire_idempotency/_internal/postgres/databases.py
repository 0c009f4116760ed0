"""Databases that run the library's statements and transactions on connections of a source (C16, C17); see `sources`.

No statement of the library is prepared, and none changes the session, so that a pooler may give each transaction
another session (C27).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from grantwire_idempotency._internal.postgres.deadlines import limited
from grantwire_idempotency._internal.postgres.errors import convert_error, is_wrong_setting
from grantwire_idempotency._internal.postgres.interruptions import recover
from grantwire_idempotency._internal.postgres.transactions import (
    AsyncTransaction,
    Transaction,
    TransactionLimits,
    require_idle,
    require_row,
    roll_back,
    roll_back_async,
)
from grantwire_idempotency.errors import AmbiguousError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import LiteralString

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.postgres.sources import AsyncConnection, AsyncDsnSource, Connection


class PsycopgDatabase:
    """Runs statements and transactions on connections of a source; safe in threads and after a fork.

    `limits` are those of its transactions. A single statement has the same limit.
    """

    def __init__(
        self,
        lend: Callable[[], AbstractContextManager[Connection]],
        logger: LibraryLogger,
        limits: TransactionLimits,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._lend = lend
        self._logger = logger
        self._limits = limits
        # Closes the connection that the library opened, and no connection of the user.
        self.close = close

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """See `StatementRunner`."""
        try:
            return self._repeat_if_lost(lambda: self._fetch_row(statement, parameters))
        except psycopg.Error as error:
            raise convert_error(error, self._logger) from error

    @contextmanager
    def transaction(self, first: LiteralString, parameters: Mapping[str, Any], /) -> Iterator[Transaction]:
        """See `TransactionRunner`."""
        has_begun = False
        try:
            with self._begin(first, parameters) as transaction:
                has_begun = True
                yield transaction
        except psycopg.Error as error:
            raise convert_error(error, self._logger, of_work=has_begun) from error

    @contextmanager
    def _begin(self, first: LiteralString, parameters: Mapping[str, Any]) -> Iterator[Transaction]:
        """Open the transaction, once more over a new connection if the first one was lost."""
        for is_last in (False, True):
            with self._lend() as connection:
                try:
                    transaction = Transaction.begin(connection, first, parameters, self._limits)
                except psycopg.OperationalError:
                    if is_last or not connection.closed:
                        raise
                    continue
                try:
                    yield transaction
                except AmbiguousError:
                    connection.close()
                    raise
                finally:
                    transaction.roll_back()
                return

    def _fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        with self._lend() as connection, limited(connection, self._limits.seconds):
            require_idle(connection)
            try:
                row = connection.cursor(row_factory=tuple_row).execute(statement, parameters, prepare=False).fetchone()
                if not connection.autocommit:
                    connection.commit()
            except BaseException:
                recover(connection)
                if not connection.autocommit:
                    roll_back(connection)
                raise
        return require_row(row)

    def _repeat_if_lost(self, action: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        try:
            return action()
        except psycopg.OperationalError as error:
            if not _is_lost(error):
                raise
        return action()


class AsyncPsycopgDatabase:
    """Runs statements and transactions on asynchronous connections of a source."""

    def __init__(
        self,
        lend: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        logger: LibraryLogger,
        limits: TransactionLimits,
        source: AsyncDsnSource | None = None,
    ) -> None:
        self._lend = lend
        self._logger = logger
        self._limits = limits
        self._source = source

    async def close(self) -> None:
        """Close the connection that the library opened, and no connection of the user."""
        if self._source is not None:
            await self._source.close()

    async def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """See `AsyncStatementRunner`."""
        try:
            try:
                return await self._fetch_row(statement, parameters)
            except psycopg.OperationalError as error:
                if not _is_lost(error):
                    raise
            return await self._fetch_row(statement, parameters)
        except psycopg.Error as error:
            raise convert_error(error, self._logger) from error

    @asynccontextmanager
    async def transaction(
        self, first: LiteralString, parameters: Mapping[str, Any], /
    ) -> AsyncIterator[AsyncTransaction]:
        """See `AsyncTransactionRunner`."""
        has_begun = False
        try:
            async with self._begin(first, parameters) as transaction:
                has_begun = True
                yield transaction
        except psycopg.Error as error:
            raise convert_error(error, self._logger, of_work=has_begun) from error

    @asynccontextmanager
    async def _begin(self, first: LiteralString, parameters: Mapping[str, Any]) -> AsyncIterator[AsyncTransaction]:
        """Open the transaction, once more over a new connection if the first one was lost."""
        for is_last in (False, True):
            async with self._lend() as connection:
                try:
                    transaction = await AsyncTransaction.begin(connection, first, parameters, self._limits)
                except psycopg.OperationalError:
                    if is_last or not connection.closed:
                        raise
                    continue
                try:
                    yield transaction
                except AmbiguousError:
                    await connection.close()
                    raise
                finally:
                    await transaction.roll_back()
                return

    async def _fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        async with self._lend() as connection:
            with limited(connection, self._limits.seconds):
                return await self._execute(connection, statement, parameters)

    @staticmethod
    async def _execute(
        connection: AsyncConnection, statement: LiteralString, parameters: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        require_idle(connection)
        try:
            cursor = await connection.cursor(row_factory=tuple_row).execute(statement, parameters, prepare=False)
            row = await cursor.fetchone()
            if not connection.autocommit:
                await connection.commit()
        except BaseException:
            if not connection.autocommit:
                await roll_back_async(connection)
            raise
        return require_row(row)


def _is_lost(error: psycopg.OperationalError) -> bool:
    """Return whether the server closed the connection, or a broken one was used: a new one may work."""
    return (error.sqlstate is None and not is_wrong_setting(error)) or error.sqlstate in ("57P01", "57P02")
