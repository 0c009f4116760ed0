"""Collects the response of an application, unless it cannot be stored."""

from __future__ import annotations

from grantwire_idempotency._internal.middleware.messages import Headers, HttpResponse
from grantwire_idempotency.errors import InternalError

# A response of this type has no end.
_EVENT_STREAM = "text/event-stream"


class UnstorableResponseError(Exception):
    """A response that cannot be stored, although the application may have done its work."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ResponseCollector:
    """The response of one request, part by part."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._start: tuple[int, Headers, str] | None = None
        self._chunks: list[bytes] = []
        self._size = 0

    def start(self, status: int, headers: Headers, reason: str = "") -> None:
        """Set status and headers. Raises UnstorableResponseError for a stream of events."""
        self._start = (status, headers, reason)
        if any(name.lower() == "content-type" and value.startswith(_EVENT_STREAM) for name, value in headers):
            raise UnstorableResponseError(status, "it is a stream of events")

    def add(self, chunk: bytes) -> None:
        """Add a part of the body. Raises UnstorableResponseError if it is too large then."""
        if self._start is None:
            raise InternalError("the application sent a body before its status")
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise UnstorableResponseError(self._start[0], f"it has more than {self._max_bytes:,} bytes")

    def finish(self) -> HttpResponse:
        """Return the complete response."""
        if self._start is None:
            raise InternalError("the application ended without a response")
        status, headers, reason = self._start
        return HttpResponse(status, headers, b"".join(self._chunks), reason)
