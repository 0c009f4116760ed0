"""Decoding and validation of the events in messages of the stream (N1, N5)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from uuid import UUID, uuid4

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from grantwire.errors import RejectedError
from grantwire.events import EVENT_TYPES, OPTIONAL_FIELDS
from grantwire.events.genuine import message_digest
from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC; _format_time appends the "Z"
_NANOS_PER_SECOND = 1_000_000_000
_CANONICAL_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Larger than any valid event: with the longest names in four-byte characters an event has less than 3 KiB.
MAX_EVENT_BYTES = 64 * 1024
_MAX_TRACE_ID_LENGTH = 256
# A percent-encoded character has up to four bytes of three characters each.
_MAX_ENCODED_TRACE_ID_LENGTH = 12 * _MAX_TRACE_ID_LENGTH


class Event(NamedTuple):
    """One event, and the id and trace id of the notification that is created if the event is new.

    `digest` identifies the message: two messages with the same event id can differ in everything else.
    """

    event_id: str
    notification_id: str
    trace_id: str | None
    payload: Mapping[str, Any]
    digest: bytes


def decode(data: bytes, headers: Mapping[str, str]) -> Event:
    """Decode the event in a message; raises RejectedError with the reason if it is invalid.

    The event id comes from the payload only, because a redriven message has another Nats-Msg-Id (N4).
    """
    payload = decode_payload(data)
    return Event(payload["event_id"], uuid7_text(), _trace_id(headers), payload, message_digest(data))


def probe_event() -> Event:
    """Return a valid event that never happened, to test whether PostgreSQL can record any event; never committed."""
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
    return Event(event_id, uuid7_text(), None, payload, b"")


def decode_payload(data: bytes) -> dict[str, Any]:
    """Decode the fields of an event, named as in the outbox; raises RejectedError if one is missing or invalid.

    The optional fields are present only where the event has them.

    The length of names is not checked here, because the constraints of the tables check it.
    """
    if len(data) > MAX_EVENT_BYTES:
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
    for name in OPTIONAL_FIELDS:
        if message.HasField(name):
            value = getattr(message, name)
            payload[name] = _format_time(name, value) if isinstance(value, Timestamp) else value
    for name in ("user_id", "stock_keeping_unit", "version"):
        if not payload[name]:
            raise RejectedError(f"{name} is missing")
    for name, text in (("user_id", message.user_id), ("stock_keeping_unit", message.stock_keeping_unit)):
        if "\x00" in text:  # PostgreSQL accepts it in no text, not even to compare it
            raise RejectedError(f"{name} contains a NUL character")
    if message.event_type not in EVENT_TYPES:
        raise RejectedError(f"unknown event_type {message.event_type[:64]!a}")
    return payload


def _event_id(text: str) -> str:
    """Return a UUID in the form that PostgreSQL writes."""
    if _CANONICAL_UUID.fullmatch(text):  # the usual case, and faster than a UUID object
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise RejectedError(f"event_id is not a UUID: {text[:64]!a}") from None


def _occurred_at(message: EntitlementEvent) -> str:
    if not message.HasField("occurred_at"):
        raise RejectedError("occurred_at is missing")
    return _format_time("occurred_at", message.occurred_at)


def _format_time(name: str, time: Timestamp) -> str:
    """Return a time of an event as RFC 3339 in UTC with microseconds."""
    try:
        if not 0 <= time.nanos < _NANOS_PER_SECOND:
            raise RejectedError(f"{name} is not a valid time")
        utc = _EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)
    except OverflowError:
        raise RejectedError(f"{name} is not a valid time") from None
    return utc.isoformat(timespec="microseconds") + "Z"


def _trace_id(headers: Mapping[str, str]) -> str | None:
    """Return the trace id of a message, or None if it is missing or malformed: it never makes an event invalid."""
    encoded = str(headers.get("trace_id", ""))
    trace_id = unquote(encoded) if len(encoded) <= _MAX_ENCODED_TRACE_ID_LENGTH else ""
    is_valid = 0 < len(trace_id) <= _MAX_TRACE_ID_LENGTH and not _CONTROL_CHARACTERS.search(trace_id)
    return trace_id if is_valid else None
