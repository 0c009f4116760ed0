"""How a trace is asked for: in exactly one way (T2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.idempotency import parse_key
from grantwire.observability import key_fingerprint, parse_trace_id
from grantwire.operations.parsing import parse_uuid
from grantwire.validation import MAX_NAME_LENGTH, clean_text, single_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self
    from uuid import UUID

_ENTITLEMENT = ("user_id", "stock_keeping_unit")
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")


def _parse_fingerprint(value: str) -> str:
    if not _FINGERPRINT.fullmatch(value):
        raise BadRequestError("key_fingerprint must have 12 hexadecimal digits in lower case, as in the logs")
    return value


def _parse_trace_id(value: str) -> str:
    trace_id = parse_trace_id(value.strip())
    if trace_id is None:
        raise BadRequestError(
            "trace_id must be a trace id of X-Ray (1-695f5a08-0123456789abcdef01234567), of W3C (32 hexadecimal digits)"
            " or a whole traceparent"
        )
    return trace_id


# The other ways to ask: the field of each, and its parser.
_PARSERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "purchase_id": ("purchase_id", lambda value: clean_text("purchase_id", value, max_length=MAX_NAME_LENGTH)),
    "idempotency_key": ("fingerprint", lambda value: key_fingerprint(parse_key([value]))),
    "key_fingerprint": ("fingerprint", _parse_fingerprint),
    "event_id": ("event_id", lambda value: parse_uuid("event_id", value)),
    "notification_id": ("notification_id", lambda value: parse_uuid("notification_id", value)),
    "trace_id": ("trace_id", _parse_trace_id),
    "correlation_id": (
        "correlation_id",
        lambda value: clean_text("correlation_id", value, max_length=MAX_NAME_LENGTH),
    ),
}
_ONE_WAY = f"ask in exactly one way: {' with '.join(_ENTITLEMENT)}, or one of {', '.join(_PARSERS)}"


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """What is traced. One field is set, or both `user_id` and `stock_keeping_unit`."""

    user_id: str | None = None
    stock_keeping_unit: str | None = None
    purchase_id: str | None = None
    fingerprint: str | None = None
    event_id: UUID | None = None
    notification_id: UUID | None = None
    trace_id: str | None = None
    correlation_id: str | None = None

    @classmethod
    def parse(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the query parameters; raises BadRequestError, also if they are none or more than one way to ask."""
        given = single_values(query, *_ENTITLEMENT, *_PARSERS)
        if set(given) == set(_ENTITLEMENT):
            user_id, sku = (clean_text(name, given[name], max_length=MAX_NAME_LENGTH) for name in _ENTITLEMENT)
            return cls(user_id=user_id, stock_keeping_unit=sku)
        if len(given) != 1 or not set(given) <= _PARSERS.keys():
            raise BadRequestError(_ONE_WAY)
        ((name, value),) = given.items()
        field, parse = _PARSERS[name]
        return cls(**{field: parse(value)})

    def as_dict(self) -> dict[str, str]:
        """Return the fields that are set, for the response; a key is shown as its fingerprint."""
        names = (*_ENTITLEMENT, "purchase_id", "trace_id", "correlation_id")
        fields = {name: getattr(self, name) for name in names}
        fields |= {"key_fingerprint": self.fingerprint}
        fields |= {name: getattr(self, name) for name in ("event_id", "notification_id")}
        return {name: str(value) for name, value in fields.items() if value is not None}
