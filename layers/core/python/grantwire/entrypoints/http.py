"""API Gateway requests: REST proxy event in, `{statusCode, headers, body}` out, every error as `{"code","message"}`.

Nothing escapes a handler: an exception would become a bare 502 and cost the warm sandbox.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from grantwire.clients.scopes import ROUTES
from grantwire.entrypoints.request import Request
from grantwire.errors import MethodNotAllowedError, NotFoundError, RejectedError, RetryableError
from grantwire.observability import begin_invocation, logger, metrics
from grantwire.runtime.lazy import LazyRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from grantwire.idempotency import StoredResponse

__all__ = ["HttpHandler", "Request", "Response"]

R = TypeVar("R")

_STATUS = {
    "BAD_REQUEST": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "IDEMPOTENCY_KEY_CONFLICT": 409,
    "ENTITLEMENT_STATE_CONFLICT": 409,
    "REQUEST_IN_PROGRESS": 409,
    "TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
}
_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Response(NamedTuple):
    """What goes back to the caller; the body is JSON text already."""

    status_code: int
    body: str
    headers: Mapping[str, str] = _NO_HEADERS
    outcome: str = "OK"

    @classmethod
    def from_stored(cls, stored: StoredResponse) -> Self:
        """A stored answer, which says so when it is sent again (I1)."""
        headers = {"Idempotent-Replayed": "true"} if stored.replayed else _NO_HEADERS
        return cls(stored.status_code, stored.body, headers, stored.outcome)

    def to_api_gateway(self) -> dict[str, Any]:
        """The shape that API Gateway expects of a proxy integration."""
        return {"statusCode": self.status_code, "headers": {**_HEADERS, **self.headers}, "body": self.body}


class HttpHandler(Generic[R]):
    """One route's Lambda handler: `handle` does the work and knows nothing of AWS."""

    def __init__(
        self, route: str, build: Callable[[Mapping[str, str]], R], handle: Callable[[Request, R], Response]
    ) -> None:
        self.route = route
        self._method, _, self._resource = route.partition(" ")
        self._runtime = LazyRuntime(build)
        self._handle = handle
        self._scope = ROUTES[route]
        self._cold = True

    def with_runtime(self, runtime: R) -> HttpHandler[R]:
        """The same handler, working with `runtime` instead of the environment's."""
        return HttpHandler(self.route, lambda _: runtime, self._handle)

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Respond to one request. Never raises."""
        started = time.perf_counter()
        aws_request_id = getattr(context, "aws_request_id", None)
        try:
            request = Request.from_api_gateway(event)
        except Exception:  # noqa: BLE001 - not an event of API Gateway's; see the module's docstring
            begin_invocation(correlation_id=None, trace_id=None, aws_request_id=aws_request_id, cold_start=self._cold)
            logger.exception("invalid API Gateway event")
            return _error("INTERNAL", "not an API Gateway event").to_api_gateway()
        keys = {
            "correlation_id": request.request_id,
            "trace_id": request.trace_id,
            "aws_request_id": aws_request_id,
            "cold_start": self._cold,
        }
        begin_invocation(**keys)
        response = self.respond(request)
        try:
            self._report(request, response, keys, (time.perf_counter() - started) * 1000)
        except Exception:  # noqa: BLE001 - what was done is done, and the caller must hear of it
            logger.exception("could not write request line")
        self._cold = False
        return response.to_api_gateway()

    def respond(self, request: Request) -> Response:
        """The answer to a request; every error is one too."""
        try:
            request.require(self._scope)
            self._check_route(request)
            return self._handle(request, self._runtime.get())
        except RejectedError as error:
            allow = {"Allow": error.allowed} if isinstance(error, MethodNotAllowedError) else {}
            return _error(error.code, str(error), allow)
        except RetryableError as error:
            return _error(error.code, str(error), {"Retry-After": str(error.retry_after)})
        except Exception:  # noqa: BLE001 - the last line of defence, see the module's docstring
            logger.exception("request failed")
            return _error("INTERNAL", f"something went wrong on our side; quote request {request.request_id}")

    def _check_route(self, request: Request) -> None:
        """The template sends every method of our path here, so that a wrong one gets a helpful answer."""
        if request.resource != self._resource:
            raise NotFoundError("no such path")
        if request.method != self._method:
            raise MethodNotAllowedError(self._method)

    def _report(self, request: Request, response: Response, keys: Mapping[str, Any], milliseconds: float) -> None:
        """One line for each request, which is its metrics too, with neither body nor key in it.

        At every log level, because it is the metrics. Its fields are a fixed list: one with the name of a dimension or
        of a metric would take its place.
        """
        fields = {
            "level": "INFO",
            "message": "request completed",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **keys,
            "status_code": response.status_code,
            "caller": request.caller,
        }
        if request.method != self._method or request.resource != self._resource:
            fields["asked_for"] = request.route
        metrics.write_document(
            {
                "Requests": {"Unit": "Count", "Value": [1.0]},
                "Latency": {"Unit": "Milliseconds", "Value": [round(milliseconds, 3)]},
            },
            dimensions={"route": self.route, "outcome": response.outcome, "service": str(metrics.service)},
            metadata=fields,
        )


def _error(code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps({"code": code, "message": message}, separators=(",", ":"))
    return Response(_STATUS[code], body, headers or {}, outcome=code)
