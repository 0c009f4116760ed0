"""Scheduled workers: one invocation works through its minute and ends in good time (O7).

EventBridge fires at most once a minute, so a worker polls, or is woken, until its budget ends; its successor has begun
by then. The event may carry `{"budget": "3s", "until": "idle"}`: work for at most that long, and stop when there is
nothing to do. An error is logged and raised, so that the function's error metric and its alarms see it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from grantwire.observability import begin_invocation, logger, metrics, trace_id_of
from grantwire.runtime.invocation import xray_header
from grantwire.runtime.lazy import LazyRuntime
from grantwire.workers.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Runtime(Protocol):
    """What a worker works with."""

    @property
    def run(self) -> Callable[[Budget], dict[str, Any]]:
        """Work until the budget ends."""


class WorkerHandler:
    """One worker's Lambda handler; `build` makes its runtime."""

    def __init__(self, name: str, build: Callable[[Mapping[str, str]], Runtime]) -> None:
        self._name = name
        self._runtime = LazyRuntime(build)

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Work until the budget ends."""
        started = time.monotonic()
        begin_invocation(
            trace_id=trace_id_of(xray_header()),
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
