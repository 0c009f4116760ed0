"""Validated requests about entitlements.

A malformed request raises BadRequestError here, so the code behind this module handles valid values only.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, MAX_REASON_LENGTH, clean_text, parse_page_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_MAX_LENGTHS = {
    "user_id": MAX_NAME_LENGTH,
    "stock_keeping_unit": MAX_NAME_LENGTH,
    "reason": MAX_REASON_LENGTH,
    "purchase_id": MAX_NAME_LENGTH,
}
_MAX_PAGE_SIZE = 1000


class Operation(Enum):
    """A change of an entitlement. The value is the status that the entitlement has afterwards."""

    GRANT = "ACTIVE"
    REVOKE = "REVOKED"


class ChangeCommand(NamedTuple):
    """The body of a request to grant or revoke one entitlement."""

    user_id: str
    stock_keeping_unit: str
    reason: str
    purchase_id: str

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Validate the fields of a request body. The BadRequestError names the first invalid field."""
        for name in fields:
            if name not in _MAX_LENGTHS:
                allowed = ", ".join(_MAX_LENGTHS)
                raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; allowed: {allowed}")
        for name in _MAX_LENGTHS:
            if name not in fields:
                raise BadRequestError(f"{name} is missing")
        return cls._make([clean_text(name, fields[name], max_length=limit) for name, limit in _MAX_LENGTHS.items()])

    def fields(self) -> dict[str, str]:
        """Return the fields by name. Two requests are the same if these fields are equal."""
        return self._asdict()


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
