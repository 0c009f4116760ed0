"""Validated requests about entitlements.

A malformed request raises BadRequestError here, so the code behind this module handles valid values only.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, MAX_REASON_LENGTH, clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

_MAX_LENGTHS = {
    "user_id": MAX_NAME_LENGTH,
    "stock_keeping_unit": MAX_NAME_LENGTH,
    "reason": MAX_REASON_LENGTH,
    "purchase_id": MAX_NAME_LENGTH,
}


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
