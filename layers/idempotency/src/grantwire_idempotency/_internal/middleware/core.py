"""The middleware without a protocol: which requests are guarded, and what each of them gets (C29).

    request ─▶ method and path are not guarded, or the key is missing and not required: the application, unguarded
       │
       ├────▶ key missing or invalid: 400 · caller unknown: 403 · body too large: 413
       ▼
    engine ─▶ the key is new: the application. Its response is stored if its status is one of `stored_statuses`;
       │      otherwise the key is released, so that a repeat runs
       ├────▶ the key has a stored response: the same again, with `Idempotent-Replayed: true`
       ├────▶ the key was used for another request: 422
       ├────▶ the first request still runs: 409 with Retry-After
       └────▶ store unavailable: CLOSED 503 with Retry-After, OPEN the application, unguarded

The engine is that of `@idempotent` (`jobs.execution`), and the key of a request is the hash of its caller and its
Idempotency-Key. Method, path, query and body are the content of the key, which a repeat must have in common.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.jobs.work import HandledFailureError
from grantwire_idempotency._internal.keys.strategies import hash_json
from grantwire_idempotency._internal.middleware.collector import UnstorableResponseError
from grantwire_idempotency._internal.middleware.problems import LOST_RESPONSE, REFUSED_RESPONSE, RequestRefusedError
from grantwire_idempotency._internal.middleware.request_keys import parse_key
from grantwire_idempotency._internal.stores.interface import Key
from grantwire_idempotency.errors import BadRequestError, InternalError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.jobs.execution import Execution
    from grantwire_idempotency._internal.middleware.messages import HttpRequest, HttpResponse
    from grantwire_idempotency._internal.middleware.problems import Problems
    from grantwire_idempotency._internal.middleware.settings import MiddlewareSettings

_NOT_STORED = "RESPONSE_NOT_STORED"
_JSON = re.compile(r"application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)


class _ReleasedResponseError(HandledFailureError):
    """A response that ends no request: it is sent, and the key is released."""

    def __init__(self, response: HttpResponse, status: int) -> None:
        super().__init__(f"response with status {status}")
        self.response = response


class RequestGuard:
    """Decides about the requests of one application."""

    def __init__(
        self, execution: Execution, settings: MiddlewareSettings, problems: Problems, logger: LibraryLogger
    ) -> None:
        self._execution = execution
        self._settings = settings
        self._logger = logger
        self._problems = problems

    @property
    def max_request_bytes(self) -> int:
        """The size of the largest body that is read."""
        return self._settings.max_request_bytes

    def covers(self, method: str, path: str) -> bool:
        """Return whether a request is guarded; `path` is the path as the application sees it."""
        return method in self._settings.methods and self._settings.covers_path(path)

    def read_key(self, values: Sequence[str]) -> str | None:
        """Return the key of a request, or None if it has none and may run without."""
        if values:
            return parse_key(values)
        if self._settings.required:
            raise BadRequestError("Idempotency-Key is missing; send a new UUID with each new request")
        return None

    def read_caller(self, caller: object) -> str:
        """Return the caller of a request. Without one, two callers could share a key."""
        if caller is None or caller == "":
            detail = "The caller of the request is unknown. Send credentials."
            raise RequestRefusedError(HTTPStatus.FORBIDDEN, "CALLER_UNKNOWN", detail)
        if not isinstance(caller, str):
            raise InternalError(f"the function caller must return a str or None, not a {type(caller).__name__}")
        return caller

    def limit_body(self, size: int) -> None:
        """Refuse a request whose body is larger than allowed."""
        limit = self._settings.max_request_bytes
        if size > limit:
            detail = f"The body of the request must have at most {limit:,} bytes."
            raise RequestRefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "REQUEST_TOO_LARGE", detail)

    def refuse(self, error: Exception) -> HttpResponse:
        """Return the response to a request that is refused with this error; raise any other error."""
        return self._problems.describe(error)

    def run(self, request: HttpRequest, respond: Call) -> Steps[HttpResponse]:
        """Return the response to a request; `respond` calls the application and returns its response.

        Errors of the application are raised as they are, and the key is released.
        """
        application_error: BaseException | None = None

        def work() -> Steps[HttpResponse]:
            nonlocal application_error
            try:
                return self._keep_or_release((yield respond))
            except UnstorableResponseError as error:
                return self._refuse_response(request, error)
            except BaseException as error:
                application_error = error
                raise

        try:
            outcome = yield from self._execution.run(_make_key(request), self._settings.lease, work)
        except _ReleasedResponseError as released:
            return released.response
        except (RejectedError, RetryableError) as error:
            if error is application_error:
                raise
            return self.refuse(error)
        finally:
            self._execution.flush()
        response = outcome.value
        return self._replay(response) if outcome.replayed or response is None else response

    def _keep_or_release(self, response: HttpResponse) -> HttpResponse:
        asks_for_repeat = response.status >= HTTPStatus.BAD_REQUEST and response.has_header("retry-after")
        if asks_for_repeat or response.status not in self._settings.stored_statuses:
            raise _ReleasedResponseError(response, response.status)
        return response

    def _refuse_response(self, request: HttpRequest, error: UnstorableResponseError) -> HttpResponse:
        """Return the response of every request with this key. The work is done, so a repeat must not run."""
        logger = self._logger
        logger.error(
            "response cannot be stored, exclude its path from the middleware",
            extra={"method": request.method, "path": request.path, "reason": str(error)},
        )
        problem = self._problems.create(HTTPStatus.INTERNAL_SERVER_ERROR, _NOT_STORED, REFUSED_RESPONSE)
        if error.status not in self._settings.stored_statuses:
            raise _ReleasedResponseError(problem, error.status)
        return problem

    def _replay(self, response: HttpResponse | None) -> HttpResponse:
        if response is None:  # the store did not take the response
            return self._problems.create(HTTPStatus.INTERNAL_SERVER_ERROR, _NOT_STORED, LOST_RESPONSE)
        return response.as_replay()


def _make_key(request: HttpRequest) -> Key:
    """Return the key of a request, with a hash of everything that a repeat must have in common with it."""
    content: dict[str, Any] = {
        "method": request.method,
        "path": request.path.rstrip("/"),  # frameworks redirect from one form to the other, and clients follow
        "query": request.query,
        "body": _hash_body(request),
    }
    value = hash_json({"caller": request.caller, "key": request.key})
    return Key(value, message_id=request.key, content_hash=hash_json(content))


def _hash_body(request: HttpRequest) -> str:
    """Return a hash of the body. A client may write the same JSON with other white space, or in another order."""
    if _JSON.match(request.content_type):
        with contextlib.suppress(ValueError, RecursionError, BadRequestError):  # no JSON: its bytes count
            return f"json {hash_json(json.loads(request.body))}"
    return hashlib.sha256(request.body).hexdigest()
