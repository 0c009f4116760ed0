"""Validated requests about entitlements.

A malformed request raises BadRequestError here, so the code behind this module handles valid values only.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, MAX_REASON_LENGTH, clean_text, parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Self

_MAX_LENGTHS = {
    "user_id": MAX_NAME_LENGTH,
    "stock_keeping_unit": MAX_NAME_LENGTH,
    "reason": MAX_REASON_LENGTH,
    "purchase_id": MAX_NAME_LENGTH,
}


class Operation(Enum):
    """A change of an entitlement that a caller can ask for. The value is its name in the audit."""

    GRANT = "GRANT"
    REVOKE = "REVOKE"
    EXTEND = "EXTEND"

    @property
    def route(self) -> str:
        """The route of a single request, which is the scope of its idempotency keys (I7)."""
        return _ROUTES[self]

    @property
    def time_fields(self) -> tuple[str, ...]:
        """The times that a request may contain."""
        return _TIME_FIELDS[self]

    @property
    def required_fields(self) -> frozenset[str]:
        """The fields that a request must contain."""
        return _REQUIRED_FIELDS[self]


_ROUTES = {
    Operation.GRANT: "POST /v1/entitlements/grants",
    Operation.REVOKE: "POST /v1/entitlements/revokes",
    Operation.EXTEND: "POST /v1/entitlements/extensions",
}
_TIME_FIELDS: dict[Operation, tuple[str, ...]] = {
    Operation.GRANT: ("starts_at", "expires_at"),
    Operation.REVOKE: (),
    Operation.EXTEND: ("expires_at",),
}
# An extension must say what it wants: a time, or null for no end.
_REQUIRED_FIELDS = {
    operation: frozenset({*_MAX_LENGTHS, *(("expires_at",) if operation is Operation.EXTEND else ())})
    for operation in Operation
}


class ChangeCommand(NamedTuple):
    """A request to grant, revoke or extend one entitlement.

    A grant without `starts_at` starts now. Without `expires_at` it has no end, and an extension removes the end.
    """

    operation: Operation
    user_id: str
    stock_keeping_unit: str
    reason: str
    purchase_id: str
    starts_at: datetime | None = None
    expires_at: datetime | None = None

    @classmethod
    def parse(cls, operation: Operation, fields: Mapping[str, Any]) -> Self:
        """Validate the fields of a request body. The BadRequestError names the first invalid field.

        Whether the end is in the future is decided by the clock of the database, and only for a request that is not a
        repeat.
        """
        allowed = (*_MAX_LENGTHS, *operation.time_fields)
        for name in fields:
            if name not in allowed:
                raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; allowed: {', '.join(allowed)}")
        for name in allowed:
            if name not in fields and name in operation.required_fields:
                raise BadRequestError(f"{name} is missing")
        texts = {name: clean_text(name, fields[name], max_length=limit) for name, limit in _MAX_LENGTHS.items()}
        starts_at, expires_at = (_parse_optional_time(name, fields.get(name)) for name in ("starts_at", "expires_at"))
        if starts_at is not None and expires_at is not None and expires_at <= starts_at:
            raise BadRequestError("expires_at must be after starts_at")
        return cls(operation, **texts, starts_at=starts_at, expires_at=expires_at)

    def fields(self) -> dict[str, str]:
        """Return the fields by name. Two requests are the same if these fields are equal.

        Equal times in different zones are the same. A time that is null is the same as none.
        """
        texts: dict[str, str] = {name: getattr(self, name) for name in _MAX_LENGTHS}
        times = {name: getattr(self, name) for name in self.operation.time_fields}
        return texts | {name: time.isoformat() for name, time in times.items() if time is not None}


def _parse_optional_time(name: str, value: object) -> datetime | None:
    return None if value is None else parse_time(name, value)
