"""Handlers of API routes: REST proxy event in, `{statusCode, headers, body}` out.

A handler never raises: API Gateway would respond with a 502 without a body, and Lambda would discard the warm
execution environment.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from grantwire.api.authentication import authenticate
from grantwire.api.request import Request
from grantwire.api.responses import REFUSED, REFUSED_OUTCOMES, error_response, refuse
from grantwire.clients.scopes import ANONYMOUS, CLIENT_ROUTES, PUBLIC_ROUTES, ROUTES
from grantwire.errors import MethodNotAllowedError, NotFoundError, RejectedError, RetryableError
from grantwire.observability import begin_invocation, logger, metrics
from grantwire.wiring.gateway import Gateway
from grantwire.wiring.lazy import LazyRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grantwire.api.responses import Response
    from grantwire.clients.limits import RateLimiter


class Runtime(Protocol):
    """The objects that a route needs, among them the limiter of its callers."""

    @property
    def limiter(self) -> RateLimiter | None:
        """The limiter; None for a public route, and for one that is not enabled."""


R = TypeVar("R", bound=Runtime)


class HttpHandler(Generic[R]):
    """The Lambda handler of one or more routes. `routes` maps each to the function that executes its requests.

    These functions are independent of AWS. The runtime's `limiter` counts every request of a known caller, also one
    that is refused afterwards. `weigh` returns how many requests it counts as. A public route has no callers to count.
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
            return error_response("INTERNAL", "not an API Gateway event").to_api_gateway()
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
            if runtime.limiter is not None:
                runtime.limiter.take(request.authenticated_caller(), self._weigh(request))
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
    return error_response("INTERNAL", f"internal error, report it with request id {request.request_id}")
