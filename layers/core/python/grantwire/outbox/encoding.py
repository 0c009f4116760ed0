"""An event as it travels: payload and headers (N1, O3). What cannot be encoded never will be (O5)."""

from __future__ import annotations

import re
from datetime import datetime
from math import floor
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grantwire.errors import RejectedError
from grantwire.events import EVENT_TYPES
from grantwire.events.v1 import EntitlementEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.outbox.store import ClaimedEvent

_TEXTS = ("event_id", "event_type", "user_id", "stock_keeping_unit", "source", "source_id")
_FIELDS = frozenset({*_TEXTS, "occurred_at", "version"})
_texts_of = itemgetter(*_TEXTS)

# Everything that may stand in a header as it is: visible ASCII but for the escape itself.
_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_IS_SAFE = re.compile(r"[!-$&-~]*").fullmatch
_IS_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def encode_event(payload: Mapping[str, Any]) -> bytes:
    """The protocol buffer of a payload as the outbox keeps it; RejectedError says what is wrong with it."""
    if not isinstance(payload, dict) or payload.keys() != _FIELDS:
        raise RejectedError(f"the payload must have exactly these fields: {', '.join(sorted(_FIELDS))}")
    if not all(_texts_of(payload)):
        raise RejectedError(f"none of these may be empty: {', '.join(_TEXTS)}")
    if type(payload["version"]) is not int or payload["version"] < 1:
        raise RejectedError("version must be a whole number from 1 on")
    try:
        if not _IS_UUID(payload["event_id"]):
            raise RejectedError("event_id must be a UUID")
        if payload["event_type"] not in EVENT_TYPES:
            raise RejectedError(f"event_type must be one of {', '.join(sorted(EVENT_TYPES))}")
        return EntitlementEvent(**(payload | _moment(payload["occurred_at"]))).SerializeToString()
    except (TypeError, ValueError) as error:
        raise RejectedError(f"the payload cannot be encoded: {error}") from error


def headers_of(event: ClaimedEvent) -> dict[str, str]:
    """The headers of an event (O3); a value is visible ASCII, and `unquote` gives it back.

    JetStream recognises a repeat by Nats-Msg-Id.
    """
    headers = {
        "Nats-Msg-Id": event.event_id,
        "event_id": event.event_id,
        "event_type": event.event_type,
        "aggregate_key": event.aggregate_key,
        "occurred_at": str(event.payload["occurred_at"]),
    }
    if event.trace_id:
        headers["trace_id"] = event.trace_id
    if _IS_SAFE("".join(headers.values())):
        return headers
    return {name: header_value(value) for name, value in headers.items()}


def header_value(value: str) -> str:
    """`value` in visible ASCII, percent-encoded where it is not."""
    return value if _IS_SAFE(value) else quote(value, safe=_SAFE)


def _moment(value: str) -> dict[str, dict[str, int]]:
    """A time in RFC 3339, as the fields of a protocol buffer's Timestamp."""
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise RejectedError("occurred_at must have a time zone")
    return {"occurred_at": {"seconds": floor(moment.timestamp()), "nanos": moment.microsecond * 1000}}
