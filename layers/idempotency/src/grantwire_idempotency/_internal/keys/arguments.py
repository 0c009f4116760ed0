"""`argument`: named arguments of the decorated function as the key of a call, or as its content (C30).

    @idempotent(store, key=argument("order_id"), content=argument("total"))
    def charge(order_id: str, total: int) -> str: ...

The names are those of the function, so it does not matter how a caller passes them. The strategy reads the signature
when the function is decorated, and a name that the function does not have is a ConfigError then.
"""

from __future__ import annotations

import inspect
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

from grantwire_idempotency._internal.foundation.escaping import escape
from grantwire_idempotency._internal.keys.strategies import require_names
from grantwire_idempotency.errors import BadRequestError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

ONLY_OF_JOBS = "argument(...) must itself be the `key` or the `content` of @idempotent"


class ArgumentStrategy:
    """Reads arguments by their names, after it is bound to the function."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse a call without a function, such as one by another strategy."""
        raise ConfigError([ONLY_OF_JOBS])

    def as_key(self, function: Callable[..., Any]) -> Callable[..., str]:
        """Return the key function for the calls of a function."""
        read = self.as_content(function)

        def key(*args: Any, **kwargs: Any) -> str:
            parts = [_to_text(name, value) for name, value in read(*args, **kwargs).items()]
            return parts[0] if len(parts) == 1 else ":".join(map(escape, parts))

        return key

    def as_content(self, function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        """Return the function that reads the arguments of a call. Raises ConfigError for an unknown name."""
        signature = inspect.signature(function)
        if unknown := [name for name in self._names if name not in signature.parameters]:
            name = getattr(function, "__qualname__", "the function")
            known = ", ".join(signature.parameters) or "none"
            raise ConfigError([f"{name} has no argument {one!r:.60}; its arguments are: {known}" for one in unknown])

        def read(*args: Any, **kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return {name: bound.arguments[name] for name in self._names}

        return read


def argument(*names: str) -> ArgumentStrategy:
    """Return a strategy that uses arguments of the decorated function by their names, given or defaulted.

    As a `key`, each is a non-empty string, an integer or a UUID; several are joined by colons. As `content`, they can
    be any JSON. Only for `@idempotent`.
    """
    require_names(*names, problem="argument requires at least one name of an argument of the decorated function")
    return ArgumentStrategy(names)


def _to_text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | uuid.UUID) or value == "":
        raise BadRequestError(f"{name} must be a non-empty string, an integer or a UUID to be a key")
    return str(value)
