"""Parsing of API Gateway's REST proxy events. All content is untrusted."""

from __future__ import annotations

import base64
import json
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from grantwire.errors import BadRequestError, ForbiddenError, TooLargeError, UnauthenticatedError
from grantwire.idempotency import RequestIdentity, parse_key, request_hash
from grantwire.observability import trace_id_from_headers
from grantwire.validation import MAX_NAME_LENGTH, clean_text
from grantwire.wiring.invocation import xray_header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_BODY_BYTES = 16 * 1024
# The longest text form of an IPv6 address.
_MAX_ADDRESS_LENGTH = 45

UNAUTHENTICATED_MESSAGE = "send a valid bearer token"
_INVALID_JSON_MESSAGE = "the body must be valid JSON in UTF-8"
_CONTENT_TYPE_MESSAGE = "Content-Type must be application/json, in UTF-8"


class Request(NamedTuple):
    """A request that API Gateway received."""

    method: str
    resource: str
    path_parameters: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, Sequence[str]]
    body: Body
    caller: str | None
    scopes: frozenset[str]
    token_replaced: bool
    request_id: str
    trace_id: str
    source_address: str | None

    @classmethod
    def from_api_gateway(cls, event: Mapping[str, Any], *, path_is_decoded: bool = False) -> Request:
        """Parse a REST proxy event. Header names become lower case: AWS keeps the caller's case, emulators do not.

        `path_is_decoded`: whether the gateway has percent-decoded the path parameters. AWS passes them as they were
        sent. They are decoded exactly once, here or there.
        """
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
                name: value if path_is_decoded else unquote(value, errors="surrogateescape")
                for name, value in (event.get("pathParameters") or {}).items()
            },
            query=query,
            headers=headers,
            body=Body(event.get("body"), is_base64=bool(event.get("isBase64Encoded"))),
            caller=str(authorizer.get("principalId") or "") or None,
            scopes=frozenset(str(authorizer.get("scopes") or "").split()),
            token_replaced=authorizer.get("replaced") == "true",
            request_id=context.get("requestId", ""),
            trace_id=trace_id_from_headers(
                xray_header(),
                *headers.get("x-amzn-trace-id", ())[-1:],
                traceparent=_only(headers.get("traceparent", ())),
            ),
            source_address=_parse_address(context.get("identity")),
        )

    @property
    def route(self) -> str:
        """The method and the path template, for example `GET /v1/users/{user_id}/summary`."""
        return f"{self.method} {self.resource}"

    @property
    def correlation_id(self) -> str | None:
        """API Gateway's request id, or None if the audit cannot keep it: no text, too long, or control characters."""
        try:
            return clean_text("requestId", self.request_id, max_length=MAX_NAME_LENGTH)
        except BadRequestError:
            return None

    @property
    def source(self) -> str:
        """The origin of a command, for its action (G4). The caller chooses no part of it."""
        return f"client {self.caller}, request {self.request_id}, address {self.source_address or 'unknown'}"

    def identity(self, fields: Mapping[str, Any]) -> RequestIdentity:
        """Return the identity by which the idempotency guard recognizes this request; `fields` are hashed.

        Raises UnauthenticatedError without a caller, BadRequestError without a valid idempotency key.
        """
        caller = self.authenticated_caller()
        key = parse_key(self.headers.get("idempotency-key", []))
        return RequestIdentity(caller, self.route, key, request_hash(fields))

    def authenticated_caller(self) -> str:
        """Return the caller. Raises UnauthenticatedError without one."""
        if self.caller is None:
            raise UnauthenticatedError(UNAUTHENTICATED_MESSAGE)
        return self.caller

    def require_scope(self, scope: str) -> None:
        """Raise UnauthenticatedError without a caller, ForbiddenError if the authorizer did not grant `scope`.

        The function checks this itself, so that a mistake in the API Gateway policy does not open a route.
        """
        self.authenticated_caller()
        if scope not in self.scopes:
            raise ForbiddenError(f"missing required scope {scope}")

    def json_object(self, *, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
        """Return the body, a JSON object without duplicate keys.

        Raises TooLargeError above `max_bytes`, BadRequestError for anything else that is not such an object, and for
        a Content-Type other than JSON. A body without a Content-Type is JSON, as for API Gateway.
        """
        if not _is_json(self.headers.get("content-type", ())):
            raise BadRequestError(_CONTENT_TYPE_MESSAGE)
        return self.body.json_object(max_bytes)


class Body:
    """The body of a request. It is parsed once, although the weight of a batch and its route both need its content."""

    __slots__ = ("_is_base64", "_parsed", "_text")

    def __init__(self, text: str | None, *, is_base64: bool) -> None:
        self._text = text or ""
        self._is_base64 = is_base64
        self._parsed: dict[str, Any] | None = None

    def json_object(self, max_bytes: int) -> dict[str, Any]:
        """Return the JSON object; see `Request.json_object`. A route has one `max_bytes` for all its calls."""
        if self._parsed is None:
            self._parsed = self._parse(max_bytes)
        return self._parsed

    def _parse(self, max_bytes: int) -> dict[str, Any]:
        text = self._read(max_bytes)
        try:
            parsed = _decode_json(text)
        except (ValueError, RecursionError):
            raise BadRequestError(_INVALID_JSON_MESSAGE) from None
        if not isinstance(parsed, dict):
            raise BadRequestError("the body must be a JSON object")
        return parsed

    def _read(self, max_bytes: int) -> str:
        text = self._text
        too_large = TooLargeError(f"the body must have at most {max_bytes} bytes")
        # A cheap limit before decoding; the exact size is checked below. Base64 is a third longer than its bytes.
        if len(text) > (max_bytes * 3 // 2 if self._is_base64 else max_bytes):
            raise too_large
        if text.isascii() and not self._is_base64:
            return text
        try:
            raw = base64.b64decode(text, validate=True) if self._is_base64 else text.encode()
            if len(raw) > max_bytes:
                raise too_large
            return raw.decode()
        except ValueError:  # invalid base64 or UTF-8
            raise BadRequestError(_INVALID_JSON_MESSAGE) from None


def _parse_address(identity: object) -> str | None:
    """Return the caller's IPv4 or IPv6 address in its canonical form, or None if the event has no valid one."""
    value = identity.get("sourceIp") if isinstance(identity, dict) else None
    if not isinstance(value, str) or len(value) > _MAX_ADDRESS_LENGTH or "%" in value:
        return None  # "%" begins a zone, which is only known on one host and which PostgreSQL does not accept
    try:
        address = ip_address(value)
    except ValueError:
        return None
    # Python 3.13 writes an IPv4 address in IPv6 form with dots, as RFC 5952 and PostgreSQL do; older ones do not.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(address) if mapped is None else f"::ffff:{mapped}"


def _only(values: Sequence[str]) -> str | None:
    """Return the value of a header that was sent once."""
    return values[0] if len(values) == 1 else None


def _is_json(content_types: Sequence[str]) -> bool:
    """Return whether the values of the Content-Type header, if any, mean JSON in UTF-8."""
    if not content_types:
        return True
    media_type, *parameters = (part.strip().lower() for part in content_types[0].split(";"))
    charsets = [
        value.strip('"') for name, _, value in (each.partition("=") for each in parameters) if name == "charset"
    ]
    return len(content_types) == 1 and media_type == "application/json" and set(charsets) <= {"utf-8", "utf8"}


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        duplicate, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise BadRequestError(f"duplicate key in JSON body: {json.dumps(duplicate[:MAX_NAME_LENGTH])}")
    return members


def _reject_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity, which json accepts but JSON does not define


_decode_json = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant).decode
