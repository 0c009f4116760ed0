"""Handlers of API routes: REST proxy event in, `{statusCode, headers, body}` out.

The body of every error is `{"code", "message"}`. A handler never raises: API Gateway would respond with a 502 without a
body, and Lambda would discard the warm execution environment.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from grantwire.clients.scopes import ANONYMOUS, CLIENT_ROUTES, PUBLIC_ROUTES, ROUTES
from grantwire.entrypoints.authentication import authenticate
from grantwire.entrypoints.refusals import REFUSED, REFUSED_OUTCOMES
from grantwire.entrypoints.request import Request
from grantwire.errors import MethodNotAllowedError, NotFoundError, RejectedError, RetryableError
from grantwire.observability import begin_invocation, logger, metrics
from grantwire.wiring.gateway import Gateway
from grantwire.wiring.lazy import LazyRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from grantwire.idempotency import StoredResponse

__all__ = ["HttpHandler", "Request", "Response", "refuse"]

R = TypeVar("R")

_STATUS_CODES = {
    "BAD_REQUEST": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "IDEMPOTENCY_KEY_CONFLICT": 409,
    "ENTITLEMENT_STATE_CONFLICT": 409,
    "REQUEST_IN_PROGRESS": 409,
    "GONE": 410,
    "NOT_APPLIED": 409,
    "CLIENT_EXISTS": 409,
    "TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
}
_COMMON_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_COUNTS: Mapping[str, int] = MappingProxyType({})


class Response(NamedTuple):
    """The response to a request. The body is encoded JSON, unless the headers have another content type, or empty.

    `counts` are further metrics of its request line.
    """

    status_code: int
    body: str
    headers: Mapping[str, str] = _NO_HEADERS
    outcome: str = "OK"
    counts: Mapping[str, int] = _NO_COUNTS

    @classmethod
    def from_json(cls, value: Any, status_code: int = 200) -> Self:
        """Return a response with `value` as its body."""
        return cls(status_code, json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def from_stored(cls, stored: StoredResponse) -> Self:
        """Return a stored response; a replay has the header `Idempotent-Replayed: true` (I1)."""
        headers = {"Idempotent-Replayed": "true"} if stored.replayed else _NO_HEADERS
        return cls(stored.status_code, stored.body, headers, stored.outcome)

    def to_api_gateway(self) -> dict[str, Any]:
        """Return the response in the format of a REST proxy integration."""
        common = _COMMON_HEADERS if self.body else {}
        return {"statusCode": self.status_code, "headers": {**common, **self.headers}, "body": self.body}


class HttpHandler(Generic[R]):
    """The Lambda handler of one or more routes. `routes` maps each to the function that executes its requests.

    These functions are independent of AWS. The runtime's `limiter` counts every request of a known caller, also one
    that is refused afterwards. `weigh` returns how many requests it counts as. A public route needs no caller, so its
    runtime has no limiter.
    """

    def __init__(
        self,
        routes: Mapping[str, Callable[[Request, R], Response]],
        build: Callable[[Mapping[str, str]], R],
        build_gateway: Callable[[Mapping[str, str]], Gateway] = Gateway.build,
        weigh: Callable[[Request], int] = lambda _: 1,
    ) -> None:
        self._routes = dict(routes)
        self._weigh = weigh
        self._scopes = {route: ROUTES[route] for route in routes if route not in PUBLIC_ROUTES | CLIENT_ROUTES}
        self._gateway = LazyRuntime(build_gateway, initialize=False)
        self._runtime = LazyRuntime(build, before=self._gateway)
        self._cold = True

    def with_runtime(self, runtime: R, gateway: Gateway | None = None) -> HttpHandler[R]:
        """Return a handler of the same routes that uses `runtime` and reads no environment.

        `gateway` is the gateway in front of it; by default that of AWS.
        """
        return HttpHandler(self._routes, lambda _: runtime, lambda _: gateway or Gateway(), self._weigh)

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Respond to an API Gateway event. Never raises."""
        started = time.perf_counter()
        aws_request_id = getattr(context, "aws_request_id", None)
        try:
            gateway = self._gateway.get()
            request = Request.from_api_gateway(event, path_is_decoded=gateway.decodes_path)
        except Exception:  # noqa: BLE001 - not an API Gateway event; see the module docstring
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
        request, response = self._authenticate_and_respond(request, gateway)
        try:
            self._write_request_line(request, response, keys, (time.perf_counter() - started) * 1000)
        except Exception:  # noqa: BLE001 - the change is committed, so the caller must get its response
            logger.exception("could not write request line")
        self._cold = False
        return response.to_api_gateway()

    def _authenticate_and_respond(self, request: Request, gateway: Gateway) -> tuple[Request, Response]:
        """Return the request with its caller, and the response to it."""
        refusal: Exception | None = None
        if gateway.callers is not None:
            try:
                request, refusal = authenticate(request, gateway.callers)
            except Exception as error:  # noqa: BLE001 - see the module docstring
                refusal = error
        return request, self.respond(request) if refusal is None else _to_response(refusal, request)

    def respond(self, request: Request) -> Response:
        """Return the response to a request whose caller is known. Never raises: every error becomes a response."""
        try:
            route = self._nearest_route(request)
            if route in CLIENT_ROUTES:
                request.authenticated_caller()
            elif route not in PUBLIC_ROUTES:
                request.require_scope(self._scopes[route])
            runtime = self._runtime.get()
            limiter = getattr(runtime, "limiter", None)
            if limiter is not None:
                limiter.take(request.caller, self._weigh(request))
            self._check_route(request)
            return self._routes[request.route](request, runtime)
        except Exception as error:  # noqa: BLE001 - see the module docstring
            return _to_response(error, request)

    def _nearest_route(self, request: Request) -> str:
        """Return the route of the request; for another method or path, the route whose scope and metrics it uses."""
        if request.route in self._routes:
            return request.route
        same_path = (route for route in self._routes if _path(route) == request.resource)
        return next(same_path, next(iter(self._routes)))

    def _check_route(self, request: Request) -> None:
        """Raise an error for another path or method; the template routes every method of a path to its function."""
        if request.route in self._routes:
            return
        methods = [route.partition(" ")[0] for route in self._routes if _path(route) == request.resource]
        if not methods:
            raise NotFoundError("no such path")
        raise MethodNotAllowedError(", ".join(methods))

    def _write_request_line(
        self, request: Request, response: Response, keys: Mapping[str, Any], duration_ms: float
    ) -> None:
        """Write one line that is both the log line and the metrics of the request, without its body or key.

        It is written at every log level, because it contains the metrics. Its fields are a fixed list, because a field
        with the name of a dimension or metric would replace it.
        """
        fields = {
            "level": "INFO",
            "message": "request completed",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **keys,
            "status_code": response.status_code,
            "caller": request.caller or ANONYMOUS,
            "source_address": request.source_address,
        }
        route = self._nearest_route(request)
        if request.route != route:
            fields["asked_for"] = request.route
        metrics.write_document(
            {
                "Requests": {"Unit": "Count", "Value": [1.0]},
                "Latency": {"Unit": "Milliseconds", "Value": [round(duration_ms, 3)]},
                **{name: {"Unit": "Count", "Value": [float(count)]} for name, count in response.counts.items()},
            },
            dimensions={"route": route, "outcome": response.outcome, "service": str(metrics.service)},
            metadata=fields,
            counted=REFUSED if response.outcome in REFUSED_OUTCOMES else {},
        )


def _path(route: str) -> str:
    return route.partition(" ")[2]


def _to_response(error: Exception, request: Request) -> Response:
    """Return the response to a request that caused an error."""
    if isinstance(error, RejectedError | RetryableError):
        return refuse(error)
    logger.error("request failed", exc_info=error)
    return _error("INTERNAL", f"internal error, report it with request id {request.request_id}")


def refuse(error: RejectedError | RetryableError) -> Response:
    """Return the response to a request that was refused, or that should be sent again later."""
    if isinstance(error, RetryableError):
        return _error(error.code, str(error), {"Retry-After": str(error.retry_after)})
    allow = {"Allow": error.allowed} if isinstance(error, MethodNotAllowedError) else {}
    return _error(error.code, str(error), allow)


def _error(code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps({"code": code, "message": message}, separators=(",", ":"))
    return Response(_STATUS_CODES[code], body, headers or {}, outcome=code)
