"""Responses of the middleware itself: problem documents (RFC 9457) for refused requests."""

from __future__ import annotations

import json
from http import HTTPStatus

from grantwire_idempotency._internal.middleware.messages import HttpResponse
from grantwire_idempotency.errors import BadRequestError, KeyConflictError, RequestInProgressError, RetryableError

REFUSED_RESPONSE = (
    "The request was processed, but its response cannot be sent, because it is a stream or too large to be stored."
    " Do not send the request again with another key."
)
LOST_RESPONSE = (
    "The request was processed, but its response was not stored. Do not send the request again with another key."
)
_RUNNING = "A request with this Idempotency-Key is still running. Send the same request again later."
_CONFLICT = "This Idempotency-Key was used for another request. Use a new key."
_UNAVAILABLE = "The request cannot be processed now. Send it again later with the same Idempotency-Key."


class RequestRefusedError(Exception):
    """A request that cannot be guarded and is not passed on; `args` are status, code and text of the response."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(status, code, detail)


class Problems:
    """Creates problem documents; `documentation` is the address of a page about the key."""

    def __init__(self, documentation: str | None) -> None:
        self._type = {} if documentation is None else {"type": documentation}

    def describe(self, error: Exception) -> HttpResponse:
        """Return the response for a refused request, or raise the error if it says nothing about the request.

        The text of an error of the store is for the log: it can name servers.
        """
        match error:
            case RequestRefusedError():
                return self.create(*error.args)
            case KeyConflictError():
                return self.create(HTTPStatus.UNPROCESSABLE_ENTITY, error.code, _CONFLICT)
            case BadRequestError():
                return self.create(HTTPStatus.BAD_REQUEST, error.code, f"{error}.")
            case RequestInProgressError():
                return self.create(HTTPStatus.CONFLICT, error.code, _RUNNING, error.retry_after)
            case RetryableError():
                return self.create(HTTPStatus.SERVICE_UNAVAILABLE, error.code, _UNAVAILABLE, error.retry_after)
        raise error

    def create(self, status: HTTPStatus, code: str, detail: str, retry_after: int | None = None) -> HttpResponse:
        """Return a problem document."""
        members = {**self._type, "title": status.phrase, "status": int(status), "code": code, "detail": detail}
        body = json.dumps(members).encode()
        headers = [("content-type", "application/problem+json"), ("content-length", str(len(body)))]
        if retry_after is not None:
            headers.append(("retry-after", str(retry_after)))
        return HttpResponse(int(status), tuple(headers), body)
