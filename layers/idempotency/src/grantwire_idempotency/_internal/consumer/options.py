"""The optional arguments of both consumers, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta

    from grantwire_idempotency._internal.consumer.retries import RetryPolicy
    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.keys.messages import Message
    from grantwire_idempotency._internal.stores.interface import Key


class _Options(TypedDict, total=False):
    identify: Callable[..., Key | str | None]
    ttl: timedelta
    lease: timedelta
    order_ttl: timedelta
    fail_mode: FailMode | None
    retry: RetryPolicy
    name: str | None
    serializer: Serializer
    logger: LibraryLogger | None
    sleep: Callable[[float], Any] | None
    rand: Callable[[], float]
    clock: Callable[[], float]


class ConsumerOptions(_Options, total=False):
    """The optional arguments of `IdempotentConsumer`."""

    dead_letter: Callable[[Message[Any], Exception], Any] | None


class AsyncConsumerOptions(_Options, total=False):
    """The optional arguments of `AsyncIdempotentConsumer`."""

    dead_letter: Callable[[Message[Any], Exception], Coroutine[Any, Any, Any]] | None
