"""Encoding of the events in messages: payload and header values (N1, O3)."""

from __future__ import annotations

import re
from datetime import datetime
from math import floor
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grantwire.errors import RejectedError
from grantwire.events import EVENT_TYPES, OPTIONAL_FIELDS
from grantwire.events.v1 import EntitlementEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT_FIELDS = ("event_id", "event_type", "user_id", "stock_keeping_unit", "source", "source_id")
_FIELDS = frozenset({*_TEXT_FIELDS, "occurred_at", "version"})
_OPTIONAL_FIELDS = frozenset(OPTIONAL_FIELDS)
_TIMES = frozenset(name for name, field in EntitlementEvent.DESCRIPTOR.fields_by_name.items() if field.message_type)
_get_text_fields = itemgetter(*_TEXT_FIELDS)

# Characters that a header may contain unescaped: visible ASCII except the escape character itself.
_SAFE_CHARACTERS = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_is_safe = re.compile(r"[!-$&-~]*").fullmatch
_is_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def encode_event(payload: Mapping[str, Any]) -> bytes:
    """Encode the JSON payload of an outbox event as a protocol buffer.

    Raises RejectedError, which says what is wrong, if the payload is not a valid event. Retrying cannot help (O5).
    """
    if not isinstance(payload, dict) or (payload.keys() != _FIELDS and payload.keys() - _OPTIONAL_FIELDS != _FIELDS):
        raise RejectedError(
            f"the payload must have exactly these fields: {', '.join(sorted(_FIELDS))};"
            f" optional: {', '.join(sorted(_OPTIONAL_FIELDS))}"
        )
    if not all(_get_text_fields(payload)):
        raise RejectedError(f"these fields must not be empty: {', '.join(_TEXT_FIELDS)}")
    if type(payload["version"]) is not int or payload["version"] < 1:
        raise RejectedError("version must be an integer of at least 1")
    try:
        if not _is_uuid(payload["event_id"]):
            raise RejectedError("event_id must be a UUID")
        if payload["event_type"] not in EVENT_TYPES:
            raise RejectedError(f"event_type must be one of {', '.join(sorted(EVENT_TYPES))}")
        times = {name: _encode_time(name, payload[name]) for name in payload.keys() & _TIMES}
        return EntitlementEvent(**(payload | times)).SerializeToString()
    except (TypeError, ValueError) as error:
        raise RejectedError(f"the payload cannot be encoded: {error}") from error


def encode_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with values of visible ASCII; `urllib.parse.unquote` restores the original ones (O3)."""
    if _is_safe("".join(headers.values())):
        return headers
    return {name: encode_header_value(value) for name, value in headers.items()}


def encode_header_value(value: str) -> str:
    """Percent-encode every character that is not visible ASCII, and `%`."""
    return value if _is_safe(value) else quote(value, safe=_SAFE_CHARACTERS)


def _encode_time(name: str, value: str) -> dict[str, int]:
    """Convert an RFC 3339 time to the fields of a protocol buffer Timestamp."""
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise RejectedError(f"{name} must have a time zone")
    return {"seconds": floor(time.timestamp()), "nanos": time.microsecond * 1000}
