"""What JetStream says when it gives up on a message, and the copy of the message that is taken at once (Q1)."""

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

# Which dead letter a message was redriven from. A header of ours: unlike Nats-Msg-Id it stays with the message if a
# consumer has to put it at the end of the stream.
REDRIVE_OF = "redrive_of"

_KINDS = {
    "io.nats.jetstream.advisory.v1.max_deliver": "MAX_DELIVERIES",
    "io.nats.jetstream.advisory.v1.terminated": "MSG_TERMINATED",
}
# The server's own are below 1 KiB; whoever may publish to its subjects may send anything else.
LARGEST_ADVISORY = 64 * 1024
_LONGEST_NAME = 256
_LONGEST_REASON = 1024
_LONGEST_COMPLAINT = 200
# Neither text nor jsonb can hold a NUL or half of a surrogate pair, and a header is one line.
_UNSTORABLE = re.compile("[\x00\r\n\ud800-\udfff]")
# A message that is younger than its advisory belongs to a stream that was lost and made anew. Servers' clocks differ.
_CLOCKS_DIFFER = timedelta(minutes=1)
_FIRST_YEAR, _LAST_YEAR = 1970, 9998


@dataclass(frozen=True, slots=True)
class Advisory:
    """One message that one consumer will not get again."""

    kind: str
    stream: str
    consumer: str
    stream_seq: int
    deliveries: int
    reason: str | None
    advised_at: datetime


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A message as the stream had it."""

    subject: str
    headers: Mapping[str, str]
    payload: bytes
    message_time: datetime

    @property
    def event_id(self) -> uuid.UUID | None:
        """The event's own id, if the message names one."""
        return self._uuid("event_id")

    @property
    def origin(self) -> uuid.UUID | None:
        """The dead letter whose redrive this message is."""
        return self._uuid(REDRIVE_OF)

    @property
    def event_time(self) -> datetime:
        """When the event happened; a message that was sent again is younger than that."""
        try:
            happened = _time(unquote(self.headers.get("occurred_at", "")))
        except ValueError:
            return self.message_time
        return min(happened, self.message_time)

    def _uuid(self, header: str) -> uuid.UUID | None:
        try:
            return uuid.UUID(self.headers.get(header, ""))
        except ValueError:
            return None


def parse_advisory(body: bytes) -> Advisory:
    """Read an advisory; RejectedError if it is none that we know."""
    if len(body) > LARGEST_ADVISORY:
        raise RejectedError(f"not an advisory: {len(body)} bytes")
    try:
        found = json.loads(body)
        reason = found.get("reason")
        return Advisory(
            kind=_KINDS[found["type"]],
            stream=_name(found["stream"]),
            consumer=_name(found["consumer"]),
            stream_seq=_number(found["stream_seq"], bits=63),
            deliveries=_number(found.get("deliveries", 0), bits=31),
            reason=None if reason is None else _storable(str(reason)[:_LONGEST_REASON]),
            advised_at=_time(found["timestamp"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RejectedError(f"not an advisory: {error!r:.{_LONGEST_COMPLAINT}}") from error


async def copy_message(nats: NatsConnection, advisory: Advisory) -> MessageCopy | None:
    """The advisory's message from the stream; None if it is gone."""
    found = await nats.get_message(advisory.stream, advisory.stream_seq)
    if found is None:
        return None
    headers = {_storable(name): _storable(value) for name, value in found.headers.items()}
    copied = MessageCopy(found.subject, headers, found.data, _aware(found.time))
    return copied if copied.message_time <= advisory.advised_at + _CLOCKS_DIFFER else None


def _name(value: Any) -> str:
    """A stream's or a consumer's, which an index must be able to hold."""
    name = _storable(value)
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"a name of {len(name)} characters")
    return name


def _storable(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def _number(value: Any, *, bits: int) -> int:
    number = int(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{number} is out of range")
    return number


def _time(value: str) -> datetime:
    """RFC 3339 with nanoseconds, which Python 3.11 reads to the microsecond; not at the ends of what it can count."""
    time = _aware(datetime.fromisoformat(value))
    if not _FIRST_YEAR <= time.year <= _LAST_YEAR:
        raise ValueError(f"the year {time.year}")
    return time


def _aware(value: datetime | None) -> datetime:
    if value is None:
        raise ValueError("no time")
    return value if value.tzinfo else value.replace(tzinfo=UTC)
