"""What an application decides about its guarded requests, and the rules for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.wiring import Rule

Paths = Collection[str] | Callable[[str], bool]

DEFAULT_METHODS: Final = ("POST", "PATCH")
DEFAULT_MAX_BYTES: Final = 1_048_576
# Stored are the statuses that end a request. These say that nothing happened, and that the request may succeed
# elsewhere with the same key (307, 308), or later: malformed (400), not allowed yet (401, 403, 407), too early or too
# often (408, 423, 425, 429). No 5xx ends a request.
DEFAULT_STATUSES: Final = frozenset(range(200, 500)) - {307, 308, 400, 401, 403, 407, 408, 423, 425, 429}
# What the body of a response means without, or where its result is. Others, such as Set-Cookie, are for one client.
DEFAULT_HEADERS: Final = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-location",
        "content-type",
        "etag",
        "last-modified",
        "link",
        "location",
        "vary",
    }
)
# These describe one connection, or are computed.
_CONNECTION_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "idempotent-replayed",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_UNGUARDED_METHODS: Final = frozenset({"CONNECT", "GET", "HEAD", "OPTIONS", "QUERY", "TRACE"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class MiddlewareSettings:
    """Which requests are guarded, and what is stored."""

    methods: frozenset[str]
    covers_path: Callable[[str], bool]
    required: bool
    lease: timedelta
    stored_statuses: frozenset[int]
    max_request_bytes: int


def path_test(paths: Paths | None) -> Callable[[str], bool]:
    """Return the function that says whether a path is guarded. `/orders` covers `/orders` and what is below it."""
    if paths is None:
        return lambda _path: True
    if callable(paths):
        return paths
    prefixes = tuple(prefix.rstrip("/") + "/" for prefix in paths)
    return lambda path: f"{path}/".startswith(prefixes)


def paths_rule(paths: object) -> Rule:
    """Require prefixes or a function. A text would be a collection of its characters."""
    is_valid = paths is None or callable(paths) or _all_are(_is_prefix, paths)
    return is_valid, f"paths must be prefixes, such as ['/orders'], or a function, not {paths!r:.60}"


def methods_rule(methods: object) -> Rule:
    """Require methods that change something."""
    is_valid = _all_are(_is_changing_method, methods)
    return is_valid, f"methods must be methods that change something, such as ['POST'], not {methods!r:.60}"


def statuses_rule(statuses: object) -> Rule:
    """Require statuses of complete responses."""
    is_valid = _all_are(_is_final_status, statuses)
    return is_valid, f"stored_statuses must be numbers from 200 to 599, not {statuses!r:.60}"


def headers_rule(headers: object) -> Rule:
    """Require names of headers that belong to the response, and not to one connection."""
    is_valid = headers == () or _all_are(_is_storable_header, headers)
    return is_valid, (
        f"stored_headers must be names of headers, and none that describes a connection, not {headers!r:.60}"
    )


def size_rule(name: str, size: object) -> Rule:
    """Require a number of bytes."""
    is_valid = type(size) is int and size > 0
    return is_valid, f"{name} must be a number of bytes above 0, not {size!r:.60}"


def flag_rule(name: str, value: object) -> Rule:
    """Require True or False."""
    return isinstance(value, bool), f"{name} must be True or False, not {value!r:.60}"


def documentation_rule(documentation: object) -> Rule:
    """Require an address."""
    is_valid = documentation is None or (isinstance(documentation, str) and bool(documentation))
    return is_valid, f"documentation must be the address of a page, not {documentation!r:.60}"


def _all_are(test: Callable[[object], bool], values: object) -> bool:
    """Return whether the value is a collection, not empty, of such members."""
    is_collection = isinstance(values, Collection) and not isinstance(values, str | bytes) and len(values) > 0
    return is_collection and all(test(value) for value in cast("Collection[object]", values))


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _is_changing_method(value: object) -> bool:
    is_token = isinstance(value, str) and bool(_TOKEN.fullmatch(value)) and value == value.upper()
    return is_token and value not in _UNGUARDED_METHODS


def _is_final_status(value: object) -> bool:
    return type(value) is int and 200 <= value < 600  # noqa: PLR2004 - HTTP's own numbers


def _is_storable_header(value: object) -> bool:
    return isinstance(value, str) and bool(_TOKEN.fullmatch(value)) and value.lower() not in _CONNECTION_HEADERS
