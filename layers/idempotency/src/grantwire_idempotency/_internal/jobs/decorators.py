"""The types of `@idempotent`: what type checkers know about its arguments and about the decorated function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypedDict, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict, total=False):
    """The optional arguments of `@idempotent`."""

    content: Callable[..., Any] | None
    ttl: timedelta
    lease: timedelta
    order_ttl: timedelta
    fail_mode: FailMode | None
    name: str | None
    metrics: IdempotencyMetrics | None
    serializer: Serializer
    logger: LibraryLogger | None


class AsyncStoreRequired:
    """A coroutine function under a synchronous store, for type checkers: every use of it is a type error.

    When the program runs, the decorator raises ConfigError instead.
    """


class _OnlyAny:
    """A type that only a function with the result Any returns: it must not be taken for a coroutine function."""


class SyncDecorator(Protocol):
    """`@idempotent` with a synchronous store."""

    @overload
    def __call__(self, function: Callable[P, _OnlyAny], /) -> Callable[P, Any]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # it is a function too
        self, function: Callable[P, Coroutine[Any, Any, Any]], /
    ) -> AsyncStoreRequired: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class AsyncDecorator(Protocol):
    """`@idempotent` with an asynchronous store."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R]]:
        """Guard a coroutine function."""
