"""A client of Grantwire's HTTP API: one policy for retries and errors.

A request is repeated, within a limit of time, if that is safe: reads, and changes with an idempotency key. It is
repeated after a lost connection, 429, 502, 503 and 504, and 409 REQUEST_IN_PROGRESS, and the pause is `Retry-After` or
grows exponentially.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grantwire_cli import VERSION
from grantwire_cli.errors import AccessError, CommandError, UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx

    from grantwire_cli.target import Target

DEFAULT_TIMEOUT_SECONDS = 30.0
MIN_TIMEOUT_SECONDS = 1.0
MAX_CONNECT_SECONDS = 10.0
MAX_PAUSE_SECONDS = 8.0
MAX_SERVER_PAUSE_SECONDS = 60.0
RETRIED = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
# For messages of the API that a person can act on.
HINTS = {
    "no such path": "The installation may be older than this command and not have the route.",
    "no such dead letter": "`grantwire dead-letters list` has the kinds and ids; --state closed shows the closed ones.",
    "no such command": "`grantwire commands list` has the ids.",
    "no such client": "`grantwire clients list` has the ids.",
}


@dataclass(frozen=True)
class Response:
    """A response: status, headers and the JSON body."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def replayed(self) -> bool:
        """Whether the stored response of an earlier request was replayed."""
        return self.headers.get("idempotent-replayed", "") == "true"

    @property
    def code(self) -> str:
        """The error code; empty if the response has none."""
        return str(self.body.get("code", "")) if isinstance(self.body, dict) else ""

    @property
    def retry_after(self) -> float | None:
        """The pause that the installation asks for, in seconds."""
        value = self.headers.get("retry-after", "")
        return min(float(value), MAX_SERVER_PAUSE_SECONDS) if value.isascii() and value.isdigit() else None

    @property
    def is_retryable(self) -> bool:
        """Whether the same request can succeed later."""
        return self.status in RETRIED or (self.status == HTTPStatus.CONFLICT and self.code == "REQUEST_IN_PROGRESS")


def path_of(template: str, **names: str) -> str:
    """Return a path with its names percent-encoded. A name of dots only must not become a part of the path.

    Raises UsageError if a name is empty, because that is the path of another route.
    """
    for name, value in names.items():
        if not value:
            raise UsageError(f"{name} must not be empty.", hint="Is a variable of the shell not set?")
    encoded = {name: quote(value, safe="") for name, value in names.items()}
    return template.format(
        **{name: value.replace(".", "%2E") if value in {".", ".."} else value for name, value in encoded.items()}
    )


class Api:
    """The API of one installation. It can be used by several threads."""

    def __init__(
        self,
        target: Target,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        notify: Callable[[str], None] = lambda _text: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import httpx  # noqa: PLC0415  # a fifth of a second, which --help need not wait for

        self.target = target
        self._timeout = timeout
        self._notify = notify
        self._sleep = sleep
        self._clock = clock
        self._client: httpx.Client = httpx.Client(
            headers={"Authorization": f"Bearer {target.token}", "User-Agent": f"grantwire-cli/{VERSION}"},
            trust_env=not target.is_local,  # a proxy cannot reach this machine's own address
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self._errors = (httpx.TransportError, httpx.InvalidURL)
        self._timeouts = httpx.Timeout

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, **query: object) -> Any:
        """Return the body of a GET, which must be 200. Query parameters that are None are left out."""
        return self.request("GET", path, query=query).body

    def post(self, path: str, body: object, *, key: str = "", safe: bool = False) -> Response:
        """POST a body and return the successful response; it is repeated if it has a key or is `safe`."""
        return self.request("POST", path, body=body, key=key, safe=safe)

    def pages(
        self, path: str, items: str, *, cursor: str, next_cursor: str, **query: object
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of all pages, one page in memory at a time."""
        position: object = None
        while True:
            page = self.get(path, **query, **({cursor: position} if position is not None else {}))
            yield from page[items]
            position = page.get(next_cursor)
            if position is None:
                return

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        key: str = "",
        safe: bool = False,
    ) -> Response:
        """Send a request and return its successful response; repeat it if that is safe, until the timeout.

        Raises UnavailableError, AccessError or CommandError.
        """
        repeatable = method == "GET" or bool(key) or safe
        deadline = self._clock() + self._timeout
        attempt = 0
        while True:
            attempt += 1
            try:
                left = deadline - self._clock()
                response = self.send(method, path, query=query, body=body, key=key, timeout=left)
            except UnavailableError as error:
                problem: CommandError = error
                pause = pause_before(attempt)
            else:
                if response.status < HTTPStatus.MULTIPLE_CHOICES:
                    return self._checked(response)
                problem = error_of(response, method, path)
                if not response.is_retryable:
                    raise problem
                pause = pause_before(attempt, response.retry_after)
            if not repeatable or self._clock() + pause > deadline:
                raise problem
            self._notify(f"{problem} Retrying in {pause:.1f} s.")
            self._sleep(pause)

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        key: str = "",
        timeout: float | None = None,
    ) -> Response:
        """Send a request once and return its response, whatever its status. It has at least a second.

        Raises UnavailableError if there is no response.
        """
        headers = {"Idempotency-Key": key} if key else {}
        content = None
        if body is not None:
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        params = {name: _parameter(value) for name, value in (query or {}).items() if value is not None}
        seconds = max(MIN_TIMEOUT_SECONDS, self._timeout if timeout is None else timeout)
        try:
            result = self._client.request(
                method,
                self.target.api_url.rstrip("/") + path,
                params=params or None,
                content=content,
                headers=headers,
                timeout=self._timeouts(seconds, connect=min(MAX_CONNECT_SECONDS, seconds)),
            )
        except self._errors as error:
            raise UnavailableError(
                f"{self.target.title} does not respond: {_describe(error)}.",
                hint=self._outage_hint(),
                code="NO_RESPONSE",
            ) from error
        return Response(
            result.status_code, {name.lower(): value for name, value in result.headers.items()}, _body(result)
        )

    def _checked(self, response: Response) -> Response:
        """Return a successful response of the API, and not one of another server at the address."""
        if isinstance(response.body, dict) and response.body:
            return response
        problem = f"{self.target.title} responded with {response.status}, and not as the API does."
        hint = f"Is {self.target.api_url} the address of the API, with its stage?"
        raise CommandError(problem, hint=hint, code="BAD_RESPONSE")

    def _outage_hint(self) -> str:
        if self.target.checkout:
            return "See `grantwire status`; start the stack with `grantwire up`; `grantwire doctor` finds the cause."
        return f"Check the address {self.target.api_url} and the network."


def pause_before(attempt: int, asked_pause: float | None = None) -> float:
    """Return the pause before the next attempt: what the installation asks for, or exponential with jitter."""
    if asked_pause is not None:
        return asked_pause
    return min(MAX_PAUSE_SECONDS, 0.25 * 2.0**attempt) * random.uniform(0.5, 1.0)  # noqa: S311  # no secret


def error_of(response: Response, method: str, path: str) -> CommandError:
    """Return the error for a response that is not a success."""
    code = response.code
    message = str(response.body.get("message", "")) if isinstance(response.body, dict) else ""
    title = f"{response.status} {code or 'without a code'}, {method} {path}"
    text = f"{message or http.client.responses.get(response.status, 'unknown status')} ({title})."
    if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        hint = (
            "`grantwire whoami` shows the client of your token, its scopes and its expiry, or that the token is wrong."
        )
        return AccessError(text, hint=hint, code=code or "FORBIDDEN")
    if response.is_retryable or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        hint = "Try again later; `grantwire status` shows which part is unavailable."
        return UnavailableError(text, hint=hint, code=code or f"HTTP_{response.status}")
    return CommandError(text, hint=HINTS.get(message, ""), code=code or "REFUSED")


def _parameter(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _body(result: httpx.Response) -> Any:
    try:
        return result.json()
    except ValueError:
        return {}


def _describe(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return text or type(error).__name__
