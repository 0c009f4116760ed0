"""Limits and parsers for text from callers: names, reasons, times and page sizes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

# In characters. CHECK constraints of the tables have the same limits; a test compares them.
MAX_NAME_LENGTH = 128  # user_id, stock_keeping_unit, purchase_id
MAX_REASON_LENGTH = 64
MAX_CLIENT_NAME_LENGTH = 64
MAX_PAGE_SIZE = 1000

# Characters that a person cannot see, that reorder the text around them, or that stand for lost bytes. Two texts that
# look the same would be two different ids. The zero width joiner and non-joiner (U+200D, U+200C) are allowed, because
# words of several languages need them. openapi.yaml has the same list; a test compares both.
FORBIDDEN_CHARACTERS = (
    r"\x00-\x1f\x7f-\x9f"  # control characters (category Cc)
    r"\ud800-\udfff"  # lone surrogates (Cs), which UTF-8 cannot encode
    r"\u2028\u2029"  # line and paragraph separators (Zl, Zp)
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\u200b\u2060\ufeff"  # zero width space, word joiner, byte order mark
    r"\ufffd"  # replacement character: the sender's encoding was not UTF-8
)
_FORBIDDEN = re.compile(f"[{FORBIDDEN_CHARACTERS}]")

# The date-time of RFC 3339 without the leap second, which neither PostgreSQL nor Python can represent. At most nine
# digits of a second: more than any clock gives. datetime.fromisoformat accepts other forms, so it checks only the days.
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_FIRST_YEAR = 2000


def refuse_unknown_fields(given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise BadRequestError for the first field that is not allowed."""
    for name in given:
        if name not in allowed:
            raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; allowed: {', '.join(allowed)}")


def clean_text(name: str, value: object, *, max_length: int) -> str:
    """Return `value` if it is a non-blank string of at most `max_length` visible characters (G8).

    Raises BadRequestError with the name of the field and the rule. The text is never changed, so white space at its
    beginning or end is refused, not removed.
    """
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a string")
    if not value.strip():
        raise BadRequestError(f"{name} must not be empty")
    if len(value) > max_length:
        raise BadRequestError(f"{name} must have at most {max_length} characters")
    if forbidden := _FORBIDDEN.search(value):
        raise BadRequestError(
            f"{name} must not contain control, bidirectional, invisible or replacement characters"
            f" (found U+{ord(forbidden[0]):04X})"
        )
    if value[0].isspace() or value[-1].isspace():
        raise BadRequestError(f"{name} must not begin or end with white space")
    return value


def parse_time(name: str, value: object) -> datetime:
    """Return the RFC 3339 time `value`, which must have a zone, as a UTC time with microseconds.

    Digits of a second after the sixth are dropped. Raises BadRequestError with the name of the field, the rule and an
    example, also for a leap second (`:60`) and for a time before the year 2000 or after 9999 (in UTC).
    """
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a string")
    try:
        time = datetime.fromisoformat(value.upper()) if _TIME.fullmatch(value) else None
    except ValueError:  # for example February 30
        time = None
    if time is None:
        raise BadRequestError(f"{name} must be an RFC 3339 time with a zone, for example 2026-01-31T12:00:00Z")
    try:
        time = time.astimezone(UTC)
    except OverflowError:  # the zone moves it before the year 1 or after the year 9999
        time = None
    if time is None or time.year < _FIRST_YEAR:
        raise BadRequestError(
            f"{name} must be in the years {_FIRST_YEAR} to 9999 in UTC, for example 2026-01-31T12:00:00Z"
        )
    return time


def parse_page_size(value: str, *, maximum: int) -> int:
    """Return the page size in the query parameter `limit`: a whole number from 1 to `maximum`.

    Raises BadRequestError for any other value.
    """
    if value.isascii() and value.isdigit() and len(value) <= len(str(maximum)) and 1 <= int(value) <= maximum:
        return int(value)
    raise BadRequestError(f"limit must be a whole number between 1 and {maximum}")


def single_values(query: Mapping[str, Sequence[str]], *allowed: str) -> dict[str, str]:
    """Return the query parameters, each with its value.

    Raises BadRequestError for a parameter that is not `allowed`, or that is repeated: neither must be ignored.
    """
    for name, values in query.items():
        if name not in allowed:
            known = f"allowed: {', '.join(allowed)}" if allowed else "this route has none"
            raise BadRequestError(f"unknown query parameter {name[:MAX_NAME_LENGTH]!a}; {known}")
        if len(values) != 1:
            raise BadRequestError(f"{name} must be given once")
    return {name: values[0] for name, values in query.items()}


class PageRequest(NamedTuple):
    """A request for at most `limit` entitlements of a user, with stock keeping units greater than `after`."""

    user_id: str
    limit: int
    after: str

    @classmethod
    def parse(cls, user_id: object, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the user_id from the path and the query parameters `limit` and `after`."""
        values = single_values(query, "limit", "after")
        return cls(
            user_id=clean_text("user_id", user_id, max_length=MAX_NAME_LENGTH),
            limit=parse_page_size(values["limit"], maximum=MAX_PAGE_SIZE) if "limit" in values else MAX_PAGE_SIZE,
            after=clean_text("after", values["after"], max_length=MAX_NAME_LENGTH) if "after" in values else "",
        )
