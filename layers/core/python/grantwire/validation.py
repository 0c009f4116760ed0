"""Limits and parsers for text from callers: names, reasons and page sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grantwire.errors import BadRequestError
from grantwire_idempotency.validation import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

__all__ = [
    "MAX_CLIENT_NAME_LENGTH",
    "MAX_NAME_LENGTH",
    "MAX_REASON_LENGTH",
    "PageRequest",
    "clean_text",
    "parse_page_size",
]

# In characters. CHECK constraints of the tables have the same limits; a test compares them.
MAX_NAME_LENGTH = 128  # user_id, stock_keeping_unit, purchase_id
MAX_REASON_LENGTH = 64
MAX_CLIENT_NAME_LENGTH = 64
_MAX_PAGE_SIZE = 1000


def parse_page_size(value: str, *, maximum: int) -> int:
    """Return the page size in the query parameter `limit`: a whole number from 1 to `maximum`.

    Raises BadRequestError for any other value.
    """
    if value.isascii() and value.isdigit() and len(value) <= len(str(maximum)) and 1 <= int(value) <= maximum:
        return int(value)
    raise BadRequestError(f"limit must be a whole number between 1 and {maximum}")


class PageRequest(NamedTuple):
    """A request for at most `limit` entitlements of a user, with stock keeping units greater than `after`."""

    user_id: str
    limit: int
    after: str

    @classmethod
    def parse(cls, user_id: object, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the user_id from the path and the query parameters `limit` and `after`."""
        for name, values in query.items():
            if name not in {"limit", "after"}:
                unknown = f"{name[:MAX_NAME_LENGTH]!a}"
                raise BadRequestError(f"unknown query parameter {unknown}; allowed: limit, after")
            if len(values) != 1:
                raise BadRequestError(f"{name} must be given once")
        after = query.get("after")
        return cls(
            user_id=clean_text("user_id", user_id, max_length=MAX_NAME_LENGTH),
            limit=parse_page_size(query["limit"][0], maximum=_MAX_PAGE_SIZE) if "limit" in query else _MAX_PAGE_SIZE,
            after="" if after is None else clean_text("after", after[0], max_length=MAX_NAME_LENGTH),
        )
