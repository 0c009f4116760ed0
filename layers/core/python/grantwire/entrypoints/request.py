"""Parsing of API Gateway's REST proxy events. All content is untrusted."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from grantwire.errors import BadRequestError, ForbiddenError, TooLargeError, UnauthenticatedError
from grantwire.idempotency import RequestIdentity, parse_key, request_hash
from grantwire.observability import trace_id_from_headers
from grantwire.runtime.invocation import xray_header
from grantwire.validation import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_BODY_BYTES = 16 * 1024

_UNAUTHENTICATED_MESSAGE = "send a valid bearer token"
_INVALID_JSON_MESSAGE = "the body must be valid JSON in UTF-8"
_TOO_LARGE_MESSAGE = f"the body must have at most {MAX_BODY_BYTES} bytes"

# A character or a percent sign that a percent-encoded path cannot contain.
_NOT_PERCENT_ENCODED = re.compile(r"[^!-~]|%(?![0-9A-Fa-f]{2})")


class Request(NamedTuple):
    """A request that API Gateway received."""

    method: str
    resource: str
    path_parameters: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, Sequence[str]]
    body: str | None
    is_base64: bool
    caller: str | None
    scopes: frozenset[str]
    request_id: str
    trace_id: str

    @classmethod
    def from_api_gateway(cls, event: Mapping[str, Any]) -> Request:
        """Parse a REST proxy event. Header names become lower case: AWS keeps the caller's case, emulators do not."""
        context = event.get("requestContext") or {}
        authorizer = context.get("authorizer") or {}
        headers = {name.lower(): values for name, values in (event.get("multiValueHeaders") or {}).items()}
        if not headers:
            headers = {name.lower(): [value] for name, value in (event.get("headers") or {}).items()}
        query = event.get("multiValueQueryStringParameters") or {
            name: [value] for name, value in (event.get("queryStringParameters") or {}).items()
        }
        return cls(
            method=event.get("httpMethod", ""),
            resource=event.get("resource", ""),
            path_parameters={
                name: _decode_path_parameter(value) for name, value in (event.get("pathParameters") or {}).items()
            },
            query=query,
            headers=headers,
            body=event.get("body"),
            is_base64=bool(event.get("isBase64Encoded")),
            caller=str(authorizer.get("principalId") or "") or None,
            scopes=frozenset(str(authorizer.get("scopes") or "").split()),
            request_id=context.get("requestId", ""),
            trace_id=trace_id_from_headers(xray_header(), *headers.get("x-amzn-trace-id", ())[-1:]),
        )

    @property
    def route(self) -> str:
        """The method and the path template, for example `GET /v1/users/{user_id}/summary`."""
        return f"{self.method} {self.resource}"

    def identity(self, fields: Mapping[str, Any]) -> RequestIdentity:
        """Return the identity by which the idempotency guard recognizes this request; `fields` are hashed.

        Raises UnauthenticatedError without a caller, BadRequestError without a valid idempotency key.
        """
        if self.caller is None:
            raise UnauthenticatedError(_UNAUTHENTICATED_MESSAGE)
        key = parse_key(self.headers.get("idempotency-key", []))
        return RequestIdentity(self.caller, self.route, key, request_hash(fields))

    def require_scope(self, scope: str) -> None:
        """Raise UnauthenticatedError without a caller, ForbiddenError if the authorizer did not grant `scope`.

        The function checks this itself, so that a mistake in the API Gateway policy does not open a route.
        """
        if self.caller is None:
            raise UnauthenticatedError(_UNAUTHENTICATED_MESSAGE)
        if scope not in self.scopes:
            raise ForbiddenError(f"missing required scope {scope}")

    def json_object(self) -> dict[str, Any]:
        """Return the body, a JSON object without duplicate keys.

        Raises TooLargeError above MAX_BODY_BYTES, BadRequestError for anything else that is not such an object.
        """
        text = self._read_body()
        try:
            parsed = _decode_json(text)
        except (ValueError, RecursionError):
            raise BadRequestError(_INVALID_JSON_MESSAGE) from None
        if not isinstance(parsed, dict):
            raise BadRequestError("the body must be a JSON object")
        return parsed

    def _read_body(self) -> str:
        body = self.body or ""
        # A cheap limit before decoding; the exact size is checked below. Base64 is a third longer than its bytes.
        if len(body) > (MAX_BODY_BYTES * 3 // 2 if self.is_base64 else MAX_BODY_BYTES):
            raise TooLargeError(_TOO_LARGE_MESSAGE)
        if body.isascii() and not self.is_base64:
            return body
        try:
            raw = base64.b64decode(body, validate=True) if self.is_base64 else body.encode()
            if len(raw) > MAX_BODY_BYTES:
                raise TooLargeError(_TOO_LARGE_MESSAGE)
            return raw.decode()
        except ValueError:  # invalid base64 or UTF-8
            raise BadRequestError(_INVALID_JSON_MESSAGE) from None


def _decode_path_parameter(value: str) -> str:
    """Percent-decode a path parameter unless it is decoded already: AWS passes it encoded, emulators decode it.

    A value that no encoded path can contain was decoded already.
    """
    if "%" not in value or _NOT_PERCENT_ENCODED.search(value):
        return value
    return unquote(value, errors="surrogateescape")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        duplicate, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise BadRequestError(f"duplicate key in JSON body: {json.dumps(duplicate[:MAX_NAME_LENGTH])}")
    return members


def _reject_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity, which json accepts but JSON does not define


_decode_json = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant).decode
