"""What the guards of transactions have in common: one at a time, and nothing may end their transaction (C18, C19)."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

_IS_OPEN: ContextVar[bool] = ContextVar("grantwire_idempotency_guard", default=False)


@contextmanager
def only_guard() -> Iterator[str]:
    """Yield the id of a new guard; raise InternalError inside the work of another one.

    The inner guard would commit its own transaction, or wait for a connection that the outer one has.
    """
    if _IS_OPEN.get():
        raise InternalError(
            "a guard is already open: guards cannot be nested; do the inner work on the connection of the outer guard"
        )
    token = _IS_OPEN.set(True)
    try:
        yield uuid.uuid4().hex
    finally:
        _IS_OPEN.reset(token)
