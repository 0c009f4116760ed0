"""Validated requests that list or check entitlements, or read the history of one.

A malformed request raises BadRequestError here, with the name of the field and what is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import BadRequestError
from grantwire.validation import (
    MAX_NAME_LENGTH,
    MAX_PAGE_SIZE,
    PageRequest,
    clean_text,
    parse_page_size,
    parse_time,
    single_values,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Self

# The statuses of an entitlement that was granted.
STATUSES = ("SCHEDULED", "ACTIVE", "EXPIRED", "REVOKED")
MAX_CHECKS = 200
# 200 pairs of the longest names in ASCII have half of that.
MAX_CHECKS_BYTES = 128 * 1024
_DEFAULT_HISTORY_LIMIT = 100
_PAIR = ("user_id", "stock_keeping_unit")


class ListRequest(NamedTuple):
    """A request for a page of a user's entitlements: of one status, if given, whose names begin with `prefix`."""

    page: PageRequest
    status: str | None
    prefix: str

    @classmethod
    def parse(cls, user_id: object, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the user_id from the path and the query parameters `limit`, `after`, `status` and `prefix`."""
        values = single_values(query, "limit", "after", "status", "prefix")
        status = values.get("status")
        if status is not None and status not in STATUSES:
            raise BadRequestError(f"status must be one of {', '.join(STATUSES)}")
        return cls(
            page=PageRequest.parse(user_id, {name: query[name] for name in ("limit", "after") if name in query}),
            status=status,
            prefix=clean_text("prefix", values["prefix"], max_length=MAX_NAME_LENGTH) if "prefix" in values else "",
        )


class CheckRequest(NamedTuple):
    """A request to check one entitlement, now or as of the past time `at`."""

    user_id: str
    stock_keeping_unit: str
    at: datetime | None

    @classmethod
    def parse(cls, path: Mapping[str, str], query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the names in the path and the query parameter `at`. The database decides whether it is past."""
        values = single_values(query, "at")
        at = parse_time("at", values["at"]) if "at" in values else None
        user_id, sku = _parse_pair("", path)
        return cls(user_id, sku, at)


class ChecksRequest(NamedTuple):
    """A request to check several entitlements: the pair `user_ids[n]` and `stock_keeping_units[n]` is check n."""

    user_ids: list[str]
    stock_keeping_units: list[str]

    @classmethod
    def parse(cls, fields: Mapping[str, Any], query: Mapping[str, Sequence[str]]) -> Self:
        """Validate a request body with 1 to 200 checks, which may be equal. There are no query parameters."""
        single_values(query)
        for name in fields:
            if name != "checks":
                raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; allowed: checks")
        if "checks" not in fields:
            raise BadRequestError("checks is missing")
        checks = fields["checks"]
        if not isinstance(checks, list) or not 1 <= len(checks) <= MAX_CHECKS:
            raise BadRequestError(f"checks must be an array of 1 to {MAX_CHECKS} objects")
        pairs = [_parse_check(f"checks[{number}]", check) for number, check in enumerate(checks)]
        return cls([user_id for user_id, _ in pairs], [sku for _, sku in pairs])


class HistoryRequest(NamedTuple):
    """A request for at most `limit` changes of an entitlement, newest first, all before the time `before` if given."""

    user_id: str
    stock_keeping_unit: str
    limit: int
    before: datetime | None

    @classmethod
    def parse(cls, path: Mapping[str, str], query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the names in the path and the query parameters `limit` and `before`."""
        values = single_values(query, "limit", "before")
        user_id, sku = _parse_pair("", path)
        return cls(
            user_id,
            sku,
            limit=parse_page_size(values.get("limit", str(_DEFAULT_HISTORY_LIMIT)), maximum=MAX_PAGE_SIZE),
            before=parse_time("before", values["before"]) if "before" in values else None,
        )


def _parse_check(where: str, check: object) -> tuple[str, str]:
    if not isinstance(check, dict):
        raise BadRequestError(f"{where} must be an object")
    for name in check:
        if name not in _PAIR:
            raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a} in {where}; allowed: {', '.join(_PAIR)}")
    for name in _PAIR:
        if name not in check:
            raise BadRequestError(f"{where}.{name} is missing")
    return _parse_pair(f"{where}.", check)


def _parse_pair(prefix: str, names: Mapping[str, object]) -> tuple[str, str]:
    user_id, sku = (clean_text(prefix + name, names.get(name), max_length=MAX_NAME_LENGTH) for name in _PAIR)
    return user_id, sku
