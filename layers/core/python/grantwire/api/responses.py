"""Responses of API routes: from a result, a stored response or an error to `{statusCode, headers, body}`.

The body of every error is `{"code", "message"}`. Only this module knows the HTTP status of an error.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import MethodNotAllowedError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.idempotency import StoredResponse

STATUS_CODES = {
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
# The metric of refused requests by caller. Only ids of known clients are values of its dimension `caller`.
REFUSED_OUTCOMES = frozenset({"BAD_REQUEST", "FORBIDDEN", "REQUEST_IN_PROGRESS", "UNAUTHENTICATED"})
REFUSED = {"RequestsRefused": ("caller", "outcome", "service")}


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


def refuse(error: RejectedError | RetryableError) -> Response:
    """Return the response to a request that was refused, or that should be sent again later."""
    if isinstance(error, RetryableError):
        return error_response(error.code, str(error), {"Retry-After": str(error.retry_after)})
    allow = {"Allow": error.allowed} if isinstance(error, MethodNotAllowedError) else {}
    return error_response(error.code, str(error), allow)


def error_response(code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response with the status code and the body of an error."""
    body = json.dumps({"code": code, "message": message}, separators=(",", ":"))
    return Response(STATUS_CODES[code], body, headers or {}, outcome=code)
