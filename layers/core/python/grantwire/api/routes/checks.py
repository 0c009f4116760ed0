"""The routes of check_entitlement. A check of one entitlement may be cached, and asked for again by its ETag.

ETag and If-None-Match are those of RFC 9110, sections 8.8.3 and 13.1.2.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.entitlements.read_requests import (
    MAX_CHECKS,
    MAX_CHECKS_BYTES,
    CheckRequest,
    ChecksRequest,
    HistoryRequest,
)
from grantwire.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.api.request import Request
    from grantwire.wiring.routes.check_entitlement import CheckRuntime

_CHECKS = "POST /v1/entitlements/checks"
# The value of an entity tag, strong or weak: If-None-Match compares only the value.
_ENTITY_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def check_one(request: Request, rt: CheckRuntime) -> Response:
    """Check one entitlement with one statement; respond with 304 if the caller has the same result already.

    Both responses have the ETag, and the time for which the result may be cached from now on. A check as of a past
    time has neither, because it says nothing about access now.
    """
    requested = CheckRequest.parse(request.path_parameters, request.query)
    if requested.at is not None:
        return Response(200, rt.checks.check_at(requested))
    result = rt.checks.check(requested)
    headers = {"ETag": f'"{result.etag}"', "Cache-Control": f"private, max-age={result.max_age}"}
    if _matches(request.headers.get("if-none-match", ()), result.etag):
        return Response(304, "", headers, outcome="NOT_MODIFIED")
    return Response(200, result.body, headers)


def check_many(request: Request, rt: CheckRuntime) -> Response:
    """Check several entitlements with one statement."""
    requested = ChecksRequest.parse(request.json_object(max_bytes=MAX_CHECKS_BYTES), request.query)
    return Response(200, rt.checks.check_many(requested))


def count_pairs(request: Request) -> int:
    """Return the number of pairs that a request checks; 1 for another route, or if the request is refused as a whole.

    The pairs are not validated yet: an invalid one counts, too.
    """
    if request.route != _CHECKS:
        return 1
    try:
        checks = request.json_object(max_bytes=MAX_CHECKS_BYTES).get("checks")
    except RejectedError:
        return 1
    return len(checks) if isinstance(checks, list) and 1 <= len(checks) <= MAX_CHECKS else 1


def list_history(request: Request, rt: CheckRuntime) -> Response:
    """List one page of the changes of an entitlement with one statement."""
    page = HistoryRequest.parse(request.path_parameters, request.query)
    return Response(200, rt.history.list_changes(page))


def _matches(values: Sequence[str], etag: str) -> bool:
    """Return whether If-None-Match lists `etag` or is `*`. Text that is no entity tag is ignored."""
    listed = ",".join(values)
    return listed.strip() == "*" or etag in _ENTITY_TAG.findall(listed)
