"""Times and durations, as a person writes and reads them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_DURATION = re.compile(r"(\d{1,6})(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")
ALLOWED = "a time with a zone, for example 2027-01-31T00:00:00Z, or a duration from now, for example 30d"
MINUTE, HOUR, DAY = 60, 3600, 86400


def parse_rfc3339(text: str) -> datetime:
    """Return a time with its zone.

    Raises ValueError if the text is not RFC 3339 with a zone, or no such time exists.
    """
    if not _RFC3339.fullmatch(text):
        raise ValueError(text)
    return datetime.fromisoformat(text.upper())


def absolute_time(text: str, now: datetime) -> str:
    """Return a time, or a duration from now, as RFC 3339 in UTC.

    Raises BadParameter that says what is allowed.
    """
    if found := _DURATION.fullmatch(text):
        moment = now + timedelta(**{_UNITS[found[2]]: int(found[1])})
    else:
        try:
            moment = parse_rfc3339(text)
        except ValueError:
            raise typer.BadParameter(f'"{text}" is not {ALLOWED}.') from None
    return format_time(moment)


def format_time(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC, with microseconds only if there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def human_time(text: str | None) -> str:
    """Return a text of the API with each time as people read it: UTC, to the second."""
    return _RFC3339.sub(_to_human, text) if text else ""


def _to_human(found: re.Match[str]) -> str:
    try:
        return f"{parse_rfc3339(found[0]).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError):  # no such day, or none in UTC
        return found[0]


def short_duration(seconds: float | None) -> str:
    """Return a duration with one or two units."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004  # two digits are enough
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min {seconds % MINUTE:.0f} s"
    if seconds < DAY:
        return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"
    return f"{seconds // DAY:.0f} d {seconds % DAY // HOUR:.0f} h"
