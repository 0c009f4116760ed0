"""Ends every wait for a PostgreSQL that does not respond, on the client's side (C26).

A server ends no statement if it is stopped itself, and no setting of a session survives a pooler. So the client counts.
At the limit it asks the server to end the statement, which leaves the connection usable. If there is no response to
that either, it closes the connection.

A limit belongs to the connection object, so it works for every connection: of the library, of the service and of the
user. The session in the server is not changed.
"""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import TypeVar

    from psycopg.abc import PQGen

    AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
    RV = TypeVar("RV")

# For the request to end a statement, and for the response to it. psycopg asks without a limit before libpq 17.
_GRACE_SECONDS = 1.0
# How often psycopg resumes its generators while it waits. They are resumed with this if the socket is not ready.
_INTERVAL = 0.1
_NOT_READY = 0
_NO_RESPONSE = "the server did not respond within {:g} s"


class NoResponseError(psycopg.errors.QueryCanceled):
    """The server did not respond in time. The SQLSTATE says that the statement is not sent again."""


class _LimitReached(Exception):  # noqa: N818 - psycopg would handle an error of its own
    """The limit of a wait."""


def set_limit(connection: AnyConnection, seconds: float | None) -> None:
    """Limit every later wait of a connection, except those with a timeout of their own. None: there is no limit."""
    if seconds is None:
        vars(connection).pop("wait", None)
        return
    # A reference back would keep a forgotten connection open.
    reference: Any = weakref.ref(connection)
    wait = _wait_async if isinstance(connection, psycopg.AsyncConnection) else _wait
    connection.wait = partial(wait, reference, seconds)  # type: ignore[method-assign]


@contextmanager
def limited(connection: AnyConnection, seconds: float | None) -> Iterator[None]:
    """Limit the waits inside the block. None: the connection keeps the limit that it has, as it does afterwards."""
    if seconds is None:
        yield
        return
    former = vars(connection).get("wait")
    set_limit(connection, seconds)
    try:
        yield
    finally:
        set_limit(connection, None)
        if former is not None:
            connection.wait = former  # type: ignore[method-assign]


def _wait(
    reference: weakref.ref[psycopg.Connection[Any]],
    seconds: float,
    gen: PQGen[RV],
    interval: float = _INTERVAL,
    timeout: float | None = None,
) -> RV:
    """Wait as psycopg does, but at most `seconds`."""
    connection: Any = reference()
    wait = partial(type(connection).wait, connection)
    if timeout is not None:
        return wait(gen, interval=interval, timeout=timeout)  # type: ignore[no-any-return]
    handled, grace = sys.exception(), min(seconds, _GRACE_SECONDS)
    try:
        return wait(_until(gen, seconds), interval=min(interval, seconds))  # type: ignore[no-any-return]
    except _LimitReached as reached:
        _raise_interruption(connection, reached, handled)
    if psycopg.capabilities.has_cancel_safe():
        with suppress(_LimitReached):
            _end_statement(connection, grace)
            return wait(_until(gen, grace), interval=min(interval, grace))  # type: ignore[no-any-return]
    connection.pgconn.finish()
    raise NoResponseError(_NO_RESPONSE.format(seconds))


async def _wait_async(
    reference: weakref.ref[psycopg.AsyncConnection[Any]],
    seconds: float,
    gen: PQGen[RV],
    interval: float = _INTERVAL,
    timeout: float | None = None,  # noqa: ASYNC109 - the parameter of psycopg
) -> RV:
    """Do the same on an asynchronous connection."""
    connection: Any = reference()
    wait = partial(type(connection).wait, connection)
    if timeout is not None:
        return await wait(gen, interval=interval, timeout=timeout)  # type: ignore[no-any-return]
    handled, grace = sys.exception(), min(seconds, _GRACE_SECONDS)
    try:
        return await wait(_until(gen, seconds), interval=min(interval, seconds))  # type: ignore[no-any-return]
    except _LimitReached as reached:
        _raise_interruption(connection, reached, handled)
    if psycopg.capabilities.has_cancel_safe():
        with suppress(_LimitReached):
            await _end_statement_async(connection, grace)
            return await wait(_until(gen, grace), interval=min(interval, grace))  # type: ignore[no-any-return]
    connection.pgconn.finish()
    raise NoResponseError(_NO_RESPONSE.format(seconds))


def _end_statement(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Ask the server to end the statement."""
    try:
        connection.cancel_safe(timeout=seconds)
    except psycopg.Error:
        raise _LimitReached from None


async def _end_statement_async(connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
    try:
        await connection.cancel_safe(timeout=seconds)
    except psycopg.Error:
        raise _LimitReached from None


def _until(gen: PQGen[RV], seconds: float) -> Generator[Any, Any, RV]:
    """Pass on what the generator of a wait yields, until the limit. The generator can be resumed afterwards.

    psycopg has a timeout of its own since 3.3.6 only. A response that is there after the limit is still read: the
    process itself may have been suspended.
    """
    deadline = time.monotonic() + seconds
    ready: Any = None
    while True:
        try:
            state = gen.send(ready)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        ready = yield state
        if ready == _NOT_READY and time.monotonic() >= deadline:
            raise _LimitReached


def _raise_interruption(connection: AnyConnection, reached: _LimitReached, handled: BaseException | None) -> None:
    """Raise the interruption of the wait, if psycopg reached the limit while it handled one."""
    interruption = reached.__context__
    if interruption is not handled and isinstance(interruption, asyncio.CancelledError | KeyboardInterrupt):
        connection.pgconn.finish()
        raise interruption
