"""What callers may ask for, parsed and checked: nothing behind this module sees a malformed request."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, MAX_REASON_LENGTH, clean_text, parse_page_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_LONGEST = {
    "user_id": MAX_NAME_LENGTH,
    "stock_keeping_unit": MAX_NAME_LENGTH,
    "reason": MAX_REASON_LENGTH,
    "purchase_id": MAX_NAME_LENGTH,
}
_LARGEST_PAGE = 1000


class Operation(Enum):
    """A change of a right, by the status that it leads to."""

    GRANT = "ACTIVE"
    REVOKE = "REVOKED"


class Change(NamedTuple):
    """A grant or a revoke as a caller wrote it."""

    user_id: str
    stock_keeping_unit: str
    reason: str
    purchase_id: str

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Check every field of a request's body; the error names the first that is wrong."""
        for name in fields:
            if name not in _LONGEST:
                raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; known are {', '.join(_LONGEST)}")
        for name in _LONGEST:
            if name not in fields:
                raise BadRequestError(f"{name} is missing")
        return cls._make([clean_text(name, fields[name], longest=longest) for name, longest in _LONGEST.items()])

    def fields(self) -> dict[str, str]:
        """What makes this change the same as another."""
        return self._asdict()


class Page(NamedTuple):
    """A stretch of a user's rights: at most `limit`, beginning behind the sku `after`."""

    user_id: str
    limit: int
    after: str

    @classmethod
    def parse(cls, user_id: object, query: Mapping[str, Sequence[str]]) -> Self:
        """Check a path's user_id and the query parameters `limit` and `after`."""
        for name, values in query.items():
            if name not in {"limit", "after"}:
                raise BadRequestError(f"unknown query parameter {name[:MAX_NAME_LENGTH]!a}; known are limit, after")
            if len(values) != 1:
                raise BadRequestError(f"{name} must be given once")
        after = query.get("after")
        return cls(
            user_id=clean_text("user_id", user_id, longest=MAX_NAME_LENGTH),
            limit=parse_page_size(query["limit"][0], maximum=_LARGEST_PAGE) if "limit" in query else _LARGEST_PAGE,
            after="" if after is None else clean_text("after", after[0], longest=MAX_NAME_LENGTH),
        )
