"""One row of texts for one statement, close to the wire: what a caller's request needs of PostgreSQL and no more.

A cursor converts types, keeps a state and drives a generator for each statement, which takes longer than the server
takes for a replay. Here a statement is prepared once for its connection and then sent with its parameters as text, by
the same libpq connection and with the same limit on waiting.
"""

from __future__ import annotations

import re
import select
import time
from functools import cache
from typing import TYPE_CHECKING

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import LiteralString

    from psycopg.pq.abc import PGresult

    from grantwire.database.connecting import BoundedConnection

    Texts = list[str | None]

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


class Calls:
    """The prepared statements of one connection, which is in autocommit: each call is a transaction of its own."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._pgconn = connection.pgconn
        self._patience = connection.longest_wait or 60.0
        self._reads, self._writes = select.poll(), select.poll()
        self._reads.register(connection.fileno(), select.POLLIN)
        self._writes.register(connection.fileno(), select.POLLIN | select.POLLOUT)
        self._prepared: dict[str, tuple[bytes, tuple[str, ...]]] = {}

    def row(self, statement: LiteralString, parameters: Mapping[str, str | None]) -> Texts | None:
        """The first row, if there is one; raises psycopg's own errors."""
        name, order = self._prepared.get(statement) or self._prepare(statement)
        values = [None if (value := parameters[key]) is None else value.encode() for key in order]
        self._pgconn.send_query_prepared(name, values)
        result = self._result()
        if not result.ntuples:
            return None
        cell = result.get_value
        return [None if (text := cell(0, column)) is None else text.decode() for column in range(result.nfields)]

    def _prepare(self, statement: LiteralString) -> tuple[bytes, tuple[str, ...]]:
        text, order = _positional(statement)
        name = f"call_{len(self._prepared)}".encode()
        self._pgconn.send_prepare(name, text)
        self._result()
        self._prepared[statement] = name, order
        return name, order

    def _result(self) -> PGresult:
        """The answer to what was sent."""
        pgconn = self._pgconn
        deadline = time.monotonic() + self._patience
        while pgconn.flush():  # more than the socket takes at once
            self._await(self._writes, deadline)
        result: PGresult | None = None
        while True:
            while pgconn.is_busy():
                self._await(self._reads, deadline)
            more = pgconn.get_result()
            if more is None:
                break
            result = more
        if result is None:
            raise psycopg.OperationalError("the connection was lost before the answer came")
        if result.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
            raise error_from_result(result)
        return result

    def _await(self, poll: select.poll, deadline: float) -> None:
        """Read what comes next; a server that no longer answers is given up, and with it the connection."""
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise psycopg.OperationalError("the server has stopped answering")
        self._pgconn.consume_input()


@cache
def _positional(statement: LiteralString) -> tuple[bytes, tuple[str, ...]]:
    """The statement with PostgreSQL's own placeholders, and the names in their order."""
    order = tuple(dict.fromkeys(_PLACEHOLDER.findall(statement)))
    return _PLACEHOLDER.sub(lambda found: f"${order.index(found[1]) + 1}", statement).encode(), order
