"""`@idempotent`: a function runs once for each key, and every repeat returns the stored result (C5, C6).

    @idempotent(store, key=business_key("order", "order_id"))
    def handler(event, context): ...

The work and its stored result are two writes in two places. If the process dies between them, a repeat runs the work
again after the claim has expired. Work whose effect is in PostgreSQL can have both in one transaction instead:
docs/idempotency.md explains which guard to choose.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from grantwire_idempotency.execution import LEASE_MARGIN, Execution, remaining_time, to_key
from grantwire_idempotency.fail_mode import FailMode
from grantwire_idempotency.logs import logger
from grantwire_idempotency.wiring import (
    callable_rule,
    duration_rule,
    fail_mode_rule,
    job_name,
    job_rules,
    metrics_rule,
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


def idempotent(  # noqa: PLR0913 - each parameter is one decision of the caller
    store: Store,
    *,
    key: Callable[..., Key | str | None],
    ttl: timedelta = timedelta(hours=24),
    lease: timedelta = timedelta(minutes=15),
    fail_mode: FailMode = FailMode.OPEN,
    name: str | None = None,
    metrics: IdempotencyMetrics | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Guard a function: an `(event, context)` handler, a job or a method.

    `key` is called with the arguments of the function. It returns a string, or a Key with a mark. Two calls with the
    same key are the same call; "" or None means that the call runs without idempotency. The `name` is part of every
    stored key. It defaults to the name of the Lambda function, the module and the qualified name. Set it if two
    functions share their keys, or if the function may be renamed or moved to another Lambda function.

    For `ttl` after the work is done, a repeat returns the stored result without running. The stored result has been
    converted to JSON and back, so a tuple becomes a list; the first call returns the original value. A call that raises
    releases its key, so that a retry runs.

    While a call runs, other calls with its key raise RequestInProgressError. If the process dies, they do so until the
    time of the Lambda function has ended, according to the context among the arguments. Without a context, they do so
    for `lease`, which must exceed the longest run. A run that took longer than its claim raises LeaseLostError if
    another run has claimed the key meanwhile.

    Raises ConfigError at decoration time with every missing or invalid argument. A call raises BadRequestError if its
    key is too long or contains control characters, and InternalError if its result is not JSON. In the second case the
    key is completed without a result, because the work is done.
    """
    require(
        store_rule(store),
        callable_rule("key", key),
        duration_rule("ttl", ttl),
        duration_rule("lease", lease),
        fail_mode_rule(fail_mode),
        metrics_rule(metrics),
        *([] if name is None else [name_rule(name)]),
    )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        stored_name = job_name(function, name)
        require(*job_rules("the decorated object", function, stored_name))
        execution = Execution(store, name=stored_name, ttl=ttl, fail_mode=fail_mode, metrics=metrics)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            call_key = to_key(key(*args, **kwargs))
            if call_key is None:
                logger.debug("no idempotency key, processing without idempotency", extra={"task_type": stored_name})
                return function(*args, **kwargs)
            remaining = remaining_time(*args, *kwargs.values())
            claim_lease = lease if remaining is None else remaining + LEASE_MARGIN
            try:
                outcome = execution.run(call_key, claim_lease, lambda: function(*args, **kwargs))
            finally:
                execution.flush()
            return cast("R", outcome.value)

        return guarded

    return decorate
