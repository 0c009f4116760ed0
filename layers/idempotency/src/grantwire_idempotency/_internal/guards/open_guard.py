"""What the guards of transactions have in common: one at a time, and nothing may end their transaction (C18, C19)."""

from __future__ import annotations

import inspect
import uuid
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(slots=True)
class _OpenGuard:
    """A guard whose work runs. A task that the work has started still sees it when the guard has ended."""

    is_open: bool = True


_CURRENT: ContextVar[_OpenGuard | None] = ContextVar("grantwire_idempotency_guard", default=None)


@contextmanager
def only_guard() -> Iterator[str]:
    """Yield the id of a new guard; raise InternalError inside the work of another one.

    The inner guard would commit its own transaction, or wait for a connection that the outer one has.
    """
    outer = _CURRENT.get()
    if outer is not None and outer.is_open:
        raise InternalError(
            "a guard is already open: guards cannot be nested; do the inner work on the connection of the outer guard"
        )
    guard = _OpenGuard()
    token = _CURRENT.set(guard)
    try:
        yield uuid.uuid4().hex
    finally:
        guard.is_open = False
        _CURRENT.reset(token)


async def await_work(work: Callable[..., Any], connection: object) -> Any:
    """Call the work of an asynchronous guard and return its result; a plain function is an error."""
    result = work(connection)
    if not inspect.isawaitable(result):
        raise InternalError("the work of an asynchronous guard must be a coroutine function; nothing is stored")
    return await result
