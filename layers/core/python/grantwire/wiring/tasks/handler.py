"""Handlers of tasks, which an operator or a deployment invokes: the event is the input, the result is the output.

An error is logged and raised, so that the invocation fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from grantwire.observability import begin_invocation, logger, trace_id_from_headers
from grantwire.wiring.invocation import xray_header
from grantwire.wiring.lazy import LazyRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class TaskHandler(Generic[R]):
    """The Lambda handler of one task. With `secret_result`, only the keys of the result are logged.

    `handle` gets the event, the runtime, and the source of the command: the function and the request id (G4).
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Mapping[str, str]], R],
        handle: Callable[[Mapping[str, Any], R, str], dict[str, Any]],
        *,
        secret_result: bool = False,
    ) -> None:
        self._name = name
        self._runtime = LazyRuntime(build)
        self._handle = handle
        self._secret_result = secret_result

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Run the task and return its result."""
        begin_invocation(
            trace_id=trace_id_from_headers(xray_header()), aws_request_id=getattr(context, "aws_request_id", None)
        )
        try:
            result = self._handle(event, self._runtime.get(), self._source(context))
        except Exception:
            logger.exception("task failed", task=self._name)
            raise
        logger.info("task completed", task=self._name, result=sorted(result) if self._secret_result else result)
        return result

    def _source(self, context: Any) -> str:
        """Return where the command came from. The event has no part in it."""
        name = getattr(context, "function_name", None) or self._name
        return f"function {name}, request {getattr(context, 'aws_request_id', None) or 'unknown'}"
