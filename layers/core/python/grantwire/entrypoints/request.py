"""A request as API Gateway's REST proxy integration passes it on, read without trusting a byte of it."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from grantwire.errors import BadRequestError, ForbiddenError, TooLargeError, UnauthenticatedError
from grantwire.idempotency import RequestIdentity, parse_key, request_hash
from grantwire.observability import trace_id_of
from grantwire.runtime.invocation import xray_header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST_BODY = 16 * 1024
NO_CALLER = "send a valid bearer token"

_NEVER_IN_AN_ENCODED_PATH = re.compile(r"[^!-~]|%(?![0-9A-Fa-f]{2})")


class Request(NamedTuple):
    """A request as API Gateway passes it on."""

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
        """Read a REST proxy event. Header names are lower-cased: AWS keeps the client's case, emulators do not."""
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
            path_parameters={name: _decoded(value) for name, value in (event.get("pathParameters") or {}).items()},
            query=query,
            headers=headers,
            body=event.get("body"),
            is_base64=bool(event.get("isBase64Encoded")),
            caller=str(authorizer.get("principalId") or "") or None,
            scopes=frozenset(str(authorizer.get("scopes") or "").split()),
            request_id=context.get("requestId", ""),
            trace_id=trace_id_of(xray_header(), *headers.get("x-amzn-trace-id", ())[-1:]),
        )

    @property
    def route(self) -> str:
        """Method and path template, the name of what is asked for."""
        return f"{self.method} {self.resource}"

    def identity(self, fields: Mapping[str, str]) -> RequestIdentity:
        """What the idempotency guard needs to recognise this request, which asks for `fields`."""
        if self.caller is None:
            raise UnauthenticatedError(NO_CALLER)
        key = parse_key(self.headers.get("idempotency-key", []))
        return RequestIdentity(self.caller, self.route, key, request_hash(fields))

    def require(self, scope: str) -> None:
        """Let nobody through whom the authorizer did not name with this scope, whatever the gateway allows."""
        if self.caller is None:
            raise UnauthenticatedError(NO_CALLER)
        if scope not in self.scopes:
            raise ForbiddenError(f"this caller has not got the scope {scope}")

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object, in which every member stands once."""
        text = self._body_text()
        try:
            parsed = _decode(text)
        except (ValueError, RecursionError):
            raise BadRequestError("the body must be valid JSON in UTF-8") from None
        if not isinstance(parsed, dict):
            raise BadRequestError("the body must be a JSON object")
        return parsed

    def _body_text(self) -> str:
        body = self.body or ""
        # Base64 is longer than what it stands for, so this never lets a larger body through.
        if len(body) > (LARGEST_BODY * 3 // 2 if self.is_base64 else LARGEST_BODY):
            raise TooLargeError(f"the body must have at most {LARGEST_BODY} bytes")
        if body.isascii() and not self.is_base64:
            return body
        try:
            raw = base64.b64decode(body, validate=True) if self.is_base64 else body.encode()
            if len(raw) > LARGEST_BODY:
                raise TooLargeError(f"the body must have at most {LARGEST_BODY} bytes")
            return raw.decode()
        except ValueError:  # neither base64 nor UTF-8
            raise BadRequestError("the body must be valid JSON in UTF-8") from None


def _decoded(value: str) -> str:
    """A path parameter as the caller meant it: AWS passes it on percent-encoded, the emulators decode it first.

    Whatever cannot stand in an encoded path was decoded already.
    """
    if "%" not in value or _NEVER_IN_AN_ENCODED_PATH.search(value):
        return value
    return unquote(value, errors="surrogateescape")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise BadRequestError("a member of the body stands twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_decode = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant).decode
