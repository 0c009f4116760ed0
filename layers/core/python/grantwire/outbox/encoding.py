"""An event as it travels: payload and headers (N1, O3). What cannot be encoded never will be (O5)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from google.protobuf.timestamp_pb2 import Timestamp

from grantwire.errors import RejectedError
from grantwire.events.v1 import EntitlementEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.outbox.store import ClaimedEvent

_TYPES = frozenset({"EntitlementGranted", "EntitlementRevoked"})
_TEXTS = ("event_id", "event_type", "user_id", "stock_keeping_unit", "source", "source_id")
_FIELDS = frozenset({*_TEXTS, "occurred_at", "version"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_LARGEST_VERSION = 2**63 - 1

# Everything that may stand in a header as it is: visible ASCII but for the escape itself.
_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_IS_SAFE = re.compile(r"[!-$&-~]*").fullmatch
_IS_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def encode_event(payload: Mapping[str, Any]) -> bytes:
    """The protocol buffer of a payload as the outbox keeps it; RejectedError says what is wrong with it."""
    if not isinstance(payload, dict) or payload.keys() != _FIELDS:
        raise RejectedError(f"the payload must have exactly these fields: {', '.join(sorted(_FIELDS))}")
    for name in _TEXTS:
        if not isinstance(payload[name], str) or not payload[name]:
            raise RejectedError(f"{name} must be a text that is not empty")
    if not _IS_UUID(payload["event_id"]):
        raise RejectedError("event_id must be a UUID")
    if payload["event_type"] not in _TYPES:
        raise RejectedError(f"event_type must be one of {', '.join(sorted(_TYPES))}")
    version = payload["version"]
    if type(version) is not int or not 1 <= version <= _LARGEST_VERSION:
        raise RejectedError("version must be a whole number from 1 on")
    try:
        return EntitlementEvent(**{**payload, "occurred_at": _timestamp(payload["occurred_at"])}).SerializeToString()
    except (TypeError, ValueError) as error:
        raise RejectedError(f"the payload cannot be encoded: {error}") from error


def headers_of(event: ClaimedEvent) -> dict[str, str]:
    """The headers of an event. JetStream recognises a repeat by Nats-Msg-Id; `unquote` gives a value back."""
    event_id = str(event.event_id)
    headers = {
        "Nats-Msg-Id": event_id,
        "event_id": event_id,
        "event_type": header_value(event.event_type),
        "aggregate_key": header_value(event.aggregate_key),
        "occurred_at": header_value(str(event.payload["occurred_at"])),
    }
    if event.trace_id is not None:
        headers["trace_id"] = header_value(event.trace_id)
    return headers


def header_value(value: str) -> str:
    """`value` in visible ASCII, percent-encoded where it is not."""
    return value if _IS_SAFE(value) else quote(value, safe=_SAFE)


def _timestamp(value: object) -> Timestamp:
    if not isinstance(value, str):
        raise RejectedError("occurred_at must be a time in RFC 3339")
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise RejectedError("occurred_at must have a time zone")
    seconds, rest = divmod(moment - _EPOCH, _SECOND)
    return Timestamp(seconds=seconds, nanos=rest.microseconds * 1000)
