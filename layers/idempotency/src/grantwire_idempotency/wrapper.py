"""`@idempotent`: any function runs at most once for each key, and every repeat gets the first result (C5, C6).

    @idempotent(store, key=business_key("order", "order_id"))
    def handler(event, context): ...

The work and the record of it are two writes, in two places: if the process dies between them, a repeat runs again once
the claim has ended. Work whose effect is in PostgreSQL can have both in one transaction instead; see
docs/idempotency.md for which guard to use when.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from grantwire_idempotency.execution import AFTER_TIMEOUT, Execution, key_from, remaining_time
from grantwire_idempotency.fail_mode import FailMode
from grantwire_idempotency.logs import logger
from grantwire_idempotency.wiring import (
    callable_rule,
    fail_mode_rule,
    job_rules,
    length_rule,
    metrics_rule,
    name_of,
    name_rule,
    require,
    store_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.stores.interface import Key, Store

P = ParamSpec("P")
R = TypeVar("R")


def idempotent(  # noqa: PLR0913 - each is one decision of the author
    store: Store,
    *,
    key: Callable[..., Key | str | None],
    ttl: timedelta = timedelta(hours=24),
    lease: timedelta = timedelta(minutes=15),
    fail_mode: FailMode = FailMode.OPEN,
    name: str | None = None,
    metrics: IdempotencyMetrics | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Guard a function: an `(event, context)` handler, a job, a method.

    `key` is called with the function's arguments and returns what makes two calls the same: a text, or a Key with an
    order. "" or None means that this call runs without idempotency. Keys belong to the function: `name` is part of
    them, so give one if two functions are to share keys, or if the function may be renamed or moves to another Lambda.
    Without it the name is made of the Lambda function's name, the module and the qualified name.

    For `ttl` after it is done a repeat does not run. It gets the first result as JSON gives it back, tuples as lists;
    the first call itself gets the value as it was returned. A call that raises frees its key, so that a retry runs.

    While a call runs, others with its key get RequestInProgressError. If the process dies, they do so until the Lambda
    would have ended, by the context among the arguments, or for `lease` where there is none: it must exceed the longest
    run. LeaseLostError says that a run took longer than that and somebody else has run meanwhile.

    ConfigError, when the function is decorated, names everything that is missing or of the wrong kind. BadRequestError
    for a key that is too long or contains control characters; InternalError for a result that is no JSON, which counts
    as done, without a result.
    """
    require(
        store_rule(store),
        callable_rule("key", key),
        length_rule("ttl", ttl),
        length_rule("lease", lease),
        fail_mode_rule(fail_mode),
        metrics_rule(metrics),
        *([] if name is None else [name_rule(name)]),
    )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        stored_name = name_of(function, name)
        require(*job_rules("what is decorated", function, stored_name))
        execution = Execution(store, name=stored_name, ttl=ttl, fail_mode=fail_mode, metrics=metrics)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            found = key_from(key(*args, **kwargs))
            if found is None:
                logger.debug("no idempotency key, processing without idempotency", extra={"task_type": stored_name})
                return function(*args, **kwargs)
            left = remaining_time(*args, *kwargs.values())
            try:
                outcome = execution.run(
                    found, lease if left is None else left + AFTER_TIMEOUT, lambda: function(*args, **kwargs)
                )
            finally:
                execution.flush()
            return cast("R", outcome.value)

        return guarded

    return decorate
