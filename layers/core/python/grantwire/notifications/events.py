"""Events as they come from the stream: parsed, checked, and ready to be recorded (N1, N5)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from uuid import UUID, uuid4

from google.protobuf.message import DecodeError

from grantwire.errors import RejectedError
from grantwire.events import EVENT_TYPES
from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC, which its text gets in the end
_SECOND = 1_000_000_000
_IS_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Above any event: the longest names in four-byte characters are below 3 KiB.
LARGEST_EVENT = 64 * 1024
_LONGEST_TRACE = 256
_LONGEST_ENCODED_TRACE = 12 * _LONGEST_TRACE


class Event(NamedTuple):
    """One event and the notification that it leads to, should it be new."""

    event_id: str
    notification_id: str
    trace_id: str | None
    payload: Mapping[str, Any]


def decode(data: bytes, headers: Mapping[str, str]) -> Event:
    """The event in a message, or RejectedError with what is wrong.

    Nothing but the payload says which event it is: a message that was sent again may carry another Nats-Msg-Id (N4).
    """
    payload = payload_of(data)
    return Event(payload["event_id"], uuid7_text(), _trace_id(headers), payload)


def probe_event() -> Event:
    """A valid event that never happened: it is written and rolled back, to see whether any event can be recorded."""
    event_id = str(uuid4())
    payload = {
        "event_id": event_id,
        "event_type": min(EVENT_TYPES),
        "occurred_at": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "user_id": "grantwire-probe",
        "stock_keeping_unit": "grantwire-probe",
        "source": "probe",
        "source_id": event_id,
        "version": 1,
    }
    return Event(event_id, uuid7_text(), None, payload)


def payload_of(data: bytes) -> dict[str, Any]:
    """An event's fields as the outbox has them, or RejectedError; how long names may be is the database's to say."""
    if len(data) > LARGEST_EVENT:
        raise RejectedError(f"not an EntitlementEvent: {len(data)} bytes")
    message = EntitlementEvent()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise RejectedError("not an EntitlementEvent") from None
    payload = {
        "event_id": _event_id(message.event_id),
        "event_type": message.event_type,
        "occurred_at": _occurred_at(message),
        "user_id": message.user_id,
        "stock_keeping_unit": message.stock_keeping_unit,
        "source": message.source,
        "source_id": message.source_id,
        "version": message.version,
    }
    for name in ("user_id", "stock_keeping_unit", "version"):
        if not payload[name]:
            raise RejectedError(f"{name} is missing")
    if message.event_type not in EVENT_TYPES:
        raise RejectedError(f"unknown event_type {message.event_type[:64]!a}")
    return payload


def _event_id(text: str) -> str:
    """As PostgreSQL writes a UUID, which other spellings are brought to."""
    if _IS_UUID(text):
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise RejectedError(f"event_id is not a UUID: {text[:64]!a}") from None


def _occurred_at(message: EntitlementEvent) -> str:
    """RFC 3339 in UTC with microseconds, as everywhere."""
    if not message.HasField("occurred_at"):
        raise RejectedError("occurred_at is missing")
    time = message.occurred_at
    try:
        if not 0 <= time.nanos < _SECOND:
            raise RejectedError("occurred_at is not a time")
        moment = _EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)
    except OverflowError:
        raise RejectedError("occurred_at is not a time") from None
    return moment.isoformat(timespec="microseconds") + "Z"


def _trace_id(headers: Mapping[str, str]) -> str | None:
    """A trace is a help, never a reason to refuse an event: what is no decent text is left out."""
    encoded = str(headers.get("trace_id", ""))
    trace_id = unquote(encoded) if len(encoded) <= _LONGEST_ENCODED_TRACE else ""
    return trace_id if 0 < len(trace_id) <= _LONGEST_TRACE and not _CONTROL.search(trace_id) else None
