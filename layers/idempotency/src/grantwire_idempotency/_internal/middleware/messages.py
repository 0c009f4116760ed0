"""Requests and responses as the core sees them, independent of ASGI and WSGI."""

from __future__ import annotations

from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]

# Responses without a body, and so without its length.
_WITHOUT_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request with a key and a caller that was read completely.

    `path` is the whole path of the URL, also if the application is mounted below another one.
    """

    caller: str
    key: str
    method: str
    path: str
    query: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response. Names and values of headers are texts of Latin-1 characters, as in WSGI."""

    status: int
    headers: Headers
    body: bytes
    reason: str = ""

    def has_header(self, name: str) -> bool:
        """Return whether the response has a header; `name` is lower case."""
        return any(header.lower() == name for header, _ in self.headers)

    def as_replay(self) -> HttpResponse:
        """Return the response with the headers of a repeat."""
        length = () if self.status in _WITHOUT_BODY else (("content-length", str(len(self.body))),)
        return HttpResponse(self.status, (*self.headers, *length, ("idempotent-replayed", "true")), self.body)
