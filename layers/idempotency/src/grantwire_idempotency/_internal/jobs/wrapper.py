"""`@idempotent`: a function runs once for each key, and every repeat returns the stored result (C5, C6, C22).

    @idempotent(store, key=business_key("order", "order_id"))
    def handler(event, context): ...

    @idempotent(async_store, key=business_key("order", "order_id"))
    async def handle(order): ...

The work and its stored result are two writes in two places. If the process dies between them, a repeat runs the work
again after the claim has expired. Work whose effect is in PostgreSQL can have both in one transaction instead:
docs/guide.md explains which guard to choose.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, overload

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE, DEFAULT_ORDER_TTL, DEFAULT_TTL
from grantwire_idempotency._internal.foundation.fail_mode import FailMode, choose_fail_mode
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.wiring import (
    async_store_rule,
    duration_rule,
    fail_mode_rule,
    function_rule,
    is_coroutine_function,
    job_name,
    job_rules,
    logger_rule,
    metrics_rule,
    name_rule,
    require,
    serializer_rule,
    store_rule,
    sync_store_rule,
)
from grantwire_idempotency._internal.jobs.execution import Execution, Outcome
from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
from grantwire_idempotency._internal.jobs.work import LEASE_MARGIN, call_once, remaining_time, to_key
from grantwire_idempotency._internal.keys.arguments import ArgumentStrategy
from grantwire_idempotency._internal.keys.strategies import hash_json
from grantwire_idempotency.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.foundation.steps import Steps
    from grantwire_idempotency._internal.jobs.decorators import AsyncDecorator, JobOptions, SyncDecorator
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics
    from grantwire_idempotency._internal.stores.interface import AsyncStore, Key, Store

_JSON = JsonSerializer()
# The default of a parameter without one, so that `@idempotent` without arguments gets here, and not a TypeError.
_REQUIRED: Any = inspect.Parameter.empty


@overload
def idempotent(
    store: Store, *, key: Callable[..., Key | str | None], **options: Unpack[JobOptions]
) -> SyncDecorator: ...
@overload
def idempotent(
    store: AsyncStore, *, key: Callable[..., Key | str | None], **options: Unpack[JobOptions]
) -> AsyncDecorator: ...
def idempotent(  # noqa: PLR0913 - each parameter is one decision of the caller
    store: Store | AsyncStore,
    *,
    key: Callable[..., Key | str | None] = _REQUIRED,
    content: Callable[..., Any] | None = None,
    ttl: timedelta = DEFAULT_TTL,
    lease: timedelta = DEFAULT_LEASE,
    order_ttl: timedelta = DEFAULT_ORDER_TTL,
    fail_mode: FailMode | None = None,
    name: str | None = None,
    metrics: IdempotencyMetrics | None = None,
    serializer: Serializer = _JSON,
    logger: LibraryLogger | None = None,
) -> Any:
    """Guard a function: an `(event, context)` handler, a job, a method or a coroutine function.

    `key` is called with the arguments of the function. It returns a string, or a Key with a mark. Two calls with the
    same key are the same call; "" or None means that the call runs without idempotency. The `name` is part of every
    stored key. It defaults to the name of the Lambda function, the module and the qualified name. Set it if two
    functions share their keys, or if the function may be renamed or moved to another Lambda function.

    `content` is called like `key` and returns what a repeat must have in common with the first call, as JSON values: it
    can be a key strategy, such as `argument("total")`. A call with the same key and other content raises
    KeyConflictError. Without `content`, it is a repeat.

    For `ttl` after the work is done, a repeat returns the stored result without running. The result has been converted
    by the `serializer` and back: with JSON, the default, a tuple becomes a list. The first call returns the original
    value. If the key has a mark, older marks stay duplicates for `order_ttl`. A call that raises releases its key, so
    that a retry runs.

    While a call runs, other calls with its key raise RequestInProgressError. If the process dies, they do so until the
    time of the Lambda function has ended, according to the context among the arguments. Without a context, they do so
    for `lease`, which must exceed the longest run; `current_claim().extend` makes it longer. A run that took longer
    than its claim raises LeaseLostError if another run has claimed the key meanwhile.

    If the store is unavailable, `fail_mode` decides. It defaults to the fail mode of the store, then to OPEN.

    Raises ConfigError at decoration time with every missing or invalid argument. A coroutine function requires an
    asynchronous store, and a plain function a synchronous one. A call raises BadRequestError if its key is too long or
    contains control characters, and InternalError if its result cannot be serialized. In the second case the key is
    completed without a result, because the work is done.
    """
    if key is _REQUIRED and callable(store):
        raise ConfigError(['write @idempotent(store, key=argument("order_id")): a store and a key are required'])
    chosen_mode = choose_fail_mode(store, fail_mode, FailMode.OPEN)
    require(
        store_rule(store),
        (False, "key is required, such as key=argument(...)") if key is _REQUIRED else function_rule("key", key),
        (True, "") if content is None else function_rule("content", content),
        duration_rule("ttl", ttl),
        duration_rule("lease", lease),
        duration_rule("order_ttl", order_ttl),
        fail_mode_rule(chosen_mode),
        metrics_rule(metrics),
        serializer_rule(serializer),
        logger_rule(logger),
        *([] if name is None else [name_rule(name)]),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        stored_name = job_name(function, name)
        is_async = is_coroutine_function(function)
        require(
            async_store_rule(store) if is_async else sync_store_rule(store),
            *job_rules("the decorated object", function, stored_name, is_async=is_async),
        )
        settings = ExecutionSettings(stored_name, ttl, chosen_mode, order_ttl, metrics, serializer, logger)
        read_key = key.as_key(function) if isinstance(key, ArgumentStrategy) else key
        read_content = content.as_content(function) if isinstance(content, ArgumentStrategy) else content
        job = _Job(
            Execution(store, settings), function, read_key, read_content, lease, is_async, logger or default_logger
        )

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return drive(job.call(args, kwargs))

        @functools.wraps(function)
        async def guarded_coroutine(*args: Any, **kwargs: Any) -> Any:
            return await drive_async(job.call(args, kwargs))

        chosen = guarded_coroutine if is_async else guarded
        _keep_signature(chosen, function)
        return chosen

    return decorate


def _keep_signature(guarded: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Give the guarded function the signature of the function, for tools that do not follow `__wrapped__`.

    Celery is one: it checks the arguments of a task when the task is sent.
    """
    with contextlib.suppress(TypeError, ValueError, NameError):  # a built-in one, or a name only for type checkers
        guarded.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Job:
    """A guarded function."""

    execution: Execution
    function: Callable[..., Any]
    key: Callable[..., Key | str | None]
    content: Callable[..., Any] | None
    lease: timedelta
    is_async: bool
    logger: LibraryLogger

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
        """Call the function, unless it was called with this key before."""
        call_key = to_key(self.key(*args, **kwargs))
        if call_key is None:
            logger = self.logger
            logger.debug("no idempotency key, processing without idempotency", extra={"task_type": self.execution.name})
            return (yield from self._work(args, kwargs))
        if self.content is not None:
            call_key = replace(call_key, content_hash=hash_json(self.content(*args, **kwargs)))
        remaining = remaining_time(*args, *kwargs.values())
        lease = self.lease if remaining is None else remaining + LEASE_MARGIN
        try:
            outcome: Outcome = yield from self.execution.run(call_key, lease, lambda: self._work(args, kwargs))
        finally:
            self.execution.flush()
        return outcome.value

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
        return call_once(lambda: self.function(*args, **kwargs), is_async=self.is_async)
