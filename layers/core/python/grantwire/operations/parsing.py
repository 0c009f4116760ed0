"""Parsers of query parameters and path parameters that several routes share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from grantwire.errors import BadRequestError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parse_uuid(name: str, value: str) -> UUID:
    """Return a UUID in its usual form with hyphens; raises BadRequestError for any other text."""
    if not _UUID.fullmatch(value):
        raise BadRequestError(f"{name} must be a UUID such as 019b9c5d-3f40-7abc-8def-0123456789ab")
    return UUID(value)


def parse_path_uuid(what: str, value: str | None) -> UUID:
    """Return the UUID of a path; raises NotFoundError, because a path with any other text leads to nothing."""
    if value is None or not _UUID.fullmatch(value):
        raise NotFoundError(f"no such {what}")
    return UUID(value)


def parse_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of the choices; raises BadRequestError, which lists them, otherwise."""
    if value not in choices:
        raise BadRequestError(f"{name} must be one of {', '.join(choices)}")
    return value


def format_time(time: datetime | None) -> str | None:
    """Return a time in RFC 3339, in UTC, with six fractional digits and `Z`; None stays None."""
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
