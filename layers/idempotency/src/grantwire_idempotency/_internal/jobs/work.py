"""The user's part of a guarded run: the call of the work, its key, its remaining time, and its error as text."""

from __future__ import annotations

import inspect
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.steps import original
from grantwire_idempotency._internal.stores.interface import Key
from grantwire_idempotency.errors import ConfigError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.foundation.steps import Call, Steps

# A claim lasts this much longer than the remaining time of the Lambda function, so it outlives a run that times out.
LEASE_MARGIN = timedelta(seconds=1)


class HandledFailureError(Exception):
    """Work that failed and was handled, such as a message that the dead-letter hook took.

    `stored_error` is stored as the failure of the key. A later check returns it with its claim.
    """

    def __init__(self, stored_error: str) -> None:
        super().__init__(stored_error)
        self.stored_error = stored_error


def call_once(work: Call, *, is_async: bool) -> Steps[Any]:
    """Do the work. A plain function that returns an awaitable has done nothing yet: refuse it."""
    value = yield work
    if not is_async and hasattr(value, "__await__"):
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigError(
            ["the function returned an awaitable, so its work was not done: decorate a coroutine function"]
        )
    return value


def to_key(key: Key | str | None) -> Key | None:
    """Convert the return value of a key function into a Key; "" and None mean that there is no key."""
    if key is None or key == "":
        return None
    return key if isinstance(key, Key) else Key(key)


def remaining_time(*arguments: object) -> timedelta | None:
    """Return the remaining time of the Lambda function; None if no argument is a Lambda context."""
    for argument in arguments:
        get_remaining = getattr(argument, "get_remaining_time_in_millis", None)
        if callable(get_remaining):
            return timedelta(milliseconds=max(0, get_remaining()))
    return None


def describe(error: BaseException) -> str:
    """Return the text of an error that is stored: its type and its message."""
    if isinstance(error, HandledFailureError):
        return error.stored_error
    return "".join(traceback.format_exception_only(original(error))).strip()
