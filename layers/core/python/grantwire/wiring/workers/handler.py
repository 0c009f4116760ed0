"""Handlers of workers, which a schedule starts (O7).

EventBridge starts a function at most once a minute. So an invocation polls or waits for wake-ups until its budget ends;
by then the next invocation runs. The event may contain `{"budget": "3s", "until": "idle"}`: work for at most three
seconds, and stop when there is nothing to do. An error is logged and raised, so that the error metric of the function
counts it and its alarm fires.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from grantwire.observability import begin_invocation, logger, metrics, trace_id_from_headers
from grantwire.wiring.invocation import xray_header
from grantwire.wiring.lazy import LazyRuntime
from grantwire.workers.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Runtime(Protocol):
    """The runtime that a WorkerHandler needs."""

    @property
    def run(self) -> Callable[[Budget], dict[str, Any]]:
        """Work until the budget ends."""


class WorkerHandler:
    """The Lambda handler of one worker. `build` creates its runtime from the environment."""

    def __init__(self, name: str, build: Callable[[Mapping[str, str]], Runtime]) -> None:
        self._name = name
        self._runtime = LazyRuntime(build)

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Work until the budget ends and return the result of the worker."""
        started = time.monotonic()
        begin_invocation(
            trace_id=trace_id_from_headers(xray_header()),
            aws_request_id=getattr(context, "aws_request_id", None),
            worker=self._name,
        )
        metrics.add_dimension("worker", self._name)
        try:
            result = self._runtime.get().run(Budget.from_event(event, context))
        except Exception:
            logger.exception("worker failed")
            raise
        finally:
            metrics.flush_metrics()
        logger.info("worker completed", result=result, duration_ms=round((time.monotonic() - started) * 1000))
        return result
