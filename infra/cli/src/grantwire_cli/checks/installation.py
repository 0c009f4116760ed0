"""Checks of an installation over its API: token, clock, and what its status says."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from grantwire_cli.checks.findings import Finding, ok, problem, warning
from grantwire_cli.errors import AccessError, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_cli.api import Api, Response

STATUS = "/v1/ops/status"
MAX_SKEW_SECONDS = 5.0


def check_installation(api: Api) -> Iterator[Finding]:
    """Yield the findings about an installation; one that does not respond is a finding too."""
    try:
        response = api.request("GET", STATUS)
    except AccessError as error:
        yield problem("token", str(error), error.hint)
        return
    except CommandError as error:
        yield problem("API", str(error), error.hint or "grantwire status")
        return
    yield ok("API", f"{api.target.title} responds, and the token has the scope ops:read")
    yield from _check_clock(response)
    yield from _check_report(response.body)


def _check_clock(response: Response) -> Iterator[Finding]:
    """Compare this machine's clock with the header `Date`, which has whole seconds."""
    try:
        remote = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except ValueError:
        return
    skew = time.time() - remote - 0.5
    if abs(skew) > MAX_SKEW_SECONDS:
        message = f"this machine's clock differs from the API's by {skew:.0f} s"
        yield warning("clock", message, "set the clock, for example: sudo timedatectl set-ntp true")
    else:
        yield ok("clock", "this machine's clock agrees with the API's")


def _check_report(report: dict[str, Any]) -> Iterator[Finding]:
    for item in report["problems"]:
        yield problem("status", item["message"], item["to_do"])
    if not report["problems"]:
        yield ok("status", "events flow, and nothing needs a person")
