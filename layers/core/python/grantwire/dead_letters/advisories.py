"""Advisories, which JetStream sends when it stops delivering a message, and copies of those messages (Q1)."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from grantwire.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.jetstream.connection import NatsConnection

# Header that names the dead letter from which a message was redriven. Unlike Nats-Msg-Id it is kept when the bridge
# republishes the message at the end of the stream.
REDRIVE_OF_HEADER = "redrive_of"

_KINDS = {
    "io.nats.jetstream.advisory.v1.max_deliver": "MAX_DELIVERIES",
    "io.nats.jetstream.advisory.v1.terminated": "MSG_TERMINATED",
}
# Advisories of the server are below 1 KiB, but any client that may publish to the subject can send a larger message.
MAX_ADVISORY_BYTES = 64 * 1024
_MAX_NAME_LENGTH = 256
_MAX_REASON_LENGTH = 1024
_MAX_ERROR_LENGTH = 200
# PostgreSQL's text and jsonb cannot hold NUL or half of a surrogate pair, and a header value cannot hold a line break.
_UNSTORABLE = re.compile("[\x00\r\n\ud800-\udfff]")
# A message that is newer than its advisory belongs to a stream that was deleted and created again. The tolerance
# allows for differences between the clocks of the servers.
_MAX_CLOCK_SKEW = timedelta(minutes=1)
_MIN_YEAR, _MAX_YEAR = 1970, 9998


@dataclass(frozen=True, slots=True)
class Advisory:
    """The fact that JetStream will not deliver one message to one consumer again."""

    kind: str
    stream: str
    consumer: str
    stream_seq: int
    deliveries: int
    reason: str | None
    advised_at: datetime


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A copy of a message, as it was in the stream."""

    subject: str
    headers: Mapping[str, str]
    payload: bytes
    message_time: datetime

    @property
    def event_id(self) -> uuid.UUID | None:
        """The id of the event, or None if the headers do not name one."""
        return self._uuid_header("event_id")

    @property
    def origin(self) -> uuid.UUID | None:
        """The id of the dead letter from which this message was redriven, or None."""
        return self._uuid_header(REDRIVE_OF_HEADER)

    @property
    def event_time(self) -> datetime:
        """When the event occurred, which is before `message_time` if the message was published again."""
        try:
            occurred_at = _parse_time(unquote(self.headers.get("occurred_at", "")))
        except ValueError:
            return self.message_time
        return min(occurred_at, self.message_time)

    def _uuid_header(self, header: str) -> uuid.UUID | None:
        try:
            return uuid.UUID(self.headers.get(header, ""))
        except ValueError:
            return None


def parse_advisory(body: bytes) -> Advisory:
    """Parse an advisory; raises RejectedError if it is malformed or of an unknown type."""
    if len(body) > MAX_ADVISORY_BYTES:
        raise RejectedError(f"not an advisory: {len(body)} bytes")
    try:
        fields = json.loads(body)
        reason = fields.get("reason")
        return Advisory(
            kind=_KINDS[fields["type"]],
            stream=_parse_name(fields["stream"]),
            consumer=_parse_name(fields["consumer"]),
            stream_seq=_parse_unsigned(fields["stream_seq"], bits=63),
            deliveries=_parse_unsigned(fields.get("deliveries", 0), bits=31),
            reason=None if reason is None else _to_storable(str(reason)[:_MAX_REASON_LENGTH]),
            advised_at=_parse_time(fields["timestamp"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RejectedError(f"not an advisory: {error!r:.{_MAX_ERROR_LENGTH}}") from error


async def copy_message(nats: NatsConnection, advisory: Advisory) -> MessageCopy | None:
    """Copy the message of an advisory from its stream; return None if the stream no longer has it."""
    message = await nats.get_message(advisory.stream, advisory.stream_seq)
    if message is None:
        return None
    headers = {_to_storable(name): _to_storable(value) for name, value in message.headers.items()}
    copied = MessageCopy(message.subject, headers, message.data, _to_aware(message.time))
    return copied if copied.message_time <= advisory.advised_at + _MAX_CLOCK_SKEW else None


def _parse_name(value: Any) -> str:
    """Return the name of a stream or consumer; its length is limited because it is a column of an index."""
    name = _to_storable(value)
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(f"a name of {len(name)} characters")
    return name


def _to_storable(value: Any) -> str:
    """Replace the characters that PostgreSQL or a header cannot hold."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def _parse_unsigned(value: Any, *, bits: int) -> int:
    number = int(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{number} is out of range")
    return number


def _parse_time(value: str) -> datetime:
    """Parse RFC 3339; nanoseconds are cut to microseconds.

    Years near the limits of datetime are refused, because time zones and arithmetic could overflow there.
    """
    time = _to_aware(datetime.fromisoformat(value))
    if not _MIN_YEAR <= time.year <= _MAX_YEAR:
        raise ValueError(f"year {time.year} is out of range")
    return time


def _to_aware(value: datetime | None) -> datetime:
    if value is None:
        raise ValueError("time is missing")
    return value if value.tzinfo else value.replace(tzinfo=UTC)
