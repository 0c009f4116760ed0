"""N5, Q1: any message from NATS is either parsed or rejected; it causes no other error."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grantwire.dead_letters.advisories import MAX_ADVISORY_BYTES, MessageCopy, parse_advisory
from grantwire.errors import RejectedError
from grantwire.events import EVENT_TYPES
from grantwire.events.decoding import MAX_EVENT_BYTES, decode
from grantwire.events.v1 import EntitlementEvent

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
HYPOTHESIS_SETTINGS = settings(deadline=timedelta(seconds=5), max_examples=150)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=400)
UTF8_TEXT = st.text(max_size=200)
ADVISORY = {
    "type": "io.nats.jetstream.advisory.v1.max_deliver",
    "stream": "ENTITLEMENTS",
    "consumer": "bridge",
    "stream_seq": 7,
    "deliveries": 5,
    "timestamp": "2026-11-16T06:00:00.123456789Z",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=10,
)
ALMOST_ADVISORIES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys([*ADVISORY, "reason"], JSON) | {"type": st.sampled_from([ADVISORY["type"], "", 5])}
)
EVENTS = st.builds(
    EntitlementEvent,
    event_id=st.uuids().map(str) | UTF8_TEXT,
    event_type=st.sampled_from([*EVENT_TYPES, ""]) | UTF8_TEXT,
    user_id=UTF8_TEXT,
    stock_keeping_unit=UTF8_TEXT,
    source=UTF8_TEXT,
    source_id=UTF8_TEXT,
    version=st.integers(-(2**63), 2**63 - 1),
)
SECONDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70_000_000_000, 260_000_000_000)
TIMES = st.dictionaries(
    st.sampled_from(["occurred_at", "starts_at", "expires_at"]),
    st.tuples(SECONDS, st.integers(-(2**31), 2**31 - 1) | st.just(0)),
)


def _parse_or_reject(parse: Callable[[], T]) -> T | None:
    """Return the parsed value; None if it was rejected, after checking that the reason is short."""
    try:
        return parse()
    except RejectedError as error:
        reason = str(error)
    assert 0 < len(reason) < 500
    return None


def _serialize(message: EntitlementEvent, times: dict[str, tuple[int, int]]) -> bytes:
    for name, (seconds, nanos) in times.items():
        getattr(message, name).seconds, getattr(message, name).nanos = seconds, nanos
    return message.SerializeToString()


def _assert_event_or_rejected(data: bytes, headers: dict[str, str]) -> None:
    event = _parse_or_reject(lambda: decode(data, headers))
    if event is None:
        return
    assert event.payload["event_type"] in EVENT_TYPES
    assert str(event.event_id) == event.payload["event_id"]
    assert event.trace_id is None or 0 < len(event.trace_id) <= 256
    for name in {"occurred_at", "starts_at", "expires_at"} & event.payload.keys():
        assert datetime.fromisoformat(event.payload[name]).tzinfo is not None
    json.dumps(event.payload)


@HYPOTHESIS_SETTINGS
@given(data=st.binary(max_size=500), headers=st.dictionaries(st.just("trace_id"), ANY_TEXT))
@example(data=b"\x0b" * 400, headers={})  # nested groups
@example(data=b"\x0a\xff\xff\xff\xff\x0f", headers={})  # a length of 4 GiB
@example(data=b"", headers={"trace_id": "%" * 100_000})
def test_any_bytes_are_parsed_as_event_or_rejected(data: bytes, headers: dict[str, str]) -> None:
    """N5: an unparsable message is terminated, with a reason that fits on one line."""
    _assert_event_or_rejected(data, headers)


@HYPOTHESIS_SETTINGS
@given(message=EVENTS, times=TIMES, cut=st.integers(0, 40))
def test_event_with_any_field_values_is_valid_or_rejected(
    message: EntitlementEvent, times: dict[str, tuple[int, int]], cut: int
) -> None:
    """N1, N5: fields have any value that protocol buffers can encode, and the message may be truncated."""
    data = _serialize(message, times)
    _assert_event_or_rejected(data[: len(data) - cut], {})


@pytest.mark.parametrize("name", ["occurred_at", "starts_at", "expires_at"])
@pytest.mark.parametrize("time", [(2**62, 0), (0, -1), (0, 1_000_000_000)])
def test_invalid_time_is_rejected_by_name(name: str, time: tuple[int, int]) -> None:
    """N5, K3: each time of an event is checked."""
    data = _serialize(EntitlementEvent(event_id=str(UUID(int=7))), {"occurred_at": (0, 0), name: time})
    with pytest.raises(RejectedError, match=f"{name} is not a valid time"):
        decode(data, {})


def test_event_above_size_limit_is_rejected() -> None:
    """N5: it is not parsed."""
    message = EntitlementEvent(user_id="u" * MAX_EVENT_BYTES)
    with pytest.raises(RejectedError, match=r"not an EntitlementEvent: \d+ bytes"):
        decode(message.SerializeToString(), {})


@HYPOTHESIS_SETTINGS
@given(st.binary(max_size=500) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * MAX_ADVISORY_BYTES)
@example(b'{"a":' * 10_000)
@example(b"\xff\xfe" * 50)
def test_any_bytes_are_parsed_as_advisory_or_rejected(body: bytes) -> None:
    """Q1: an unparsable advisory is terminated and does not stop the recorder."""
    _assert_advisory_or_rejected(body)


@HYPOTHESIS_SETTINGS
@given(ALMOST_ADVISORIES)
@example({"stream_seq": float("inf")})
@example({"stream_seq": "9" * 5000})
@example({"deliveries": 2**31})
@example({"timestamp": "9999-12-31T23:59:59Z"})
@example({"timestamp": "0001-01-01T00:00:00+14:00"})
@example({"timestamp": "2026-11-16"})
@example({"stream": "s" * 3000})
@example({"consumer": "\0"})
@example({"reason": "r" * 50_000})
@example({"reason": {"a": ["b"]}})
def test_advisory_with_any_field_values_is_valid_or_rejected(fields: dict[str, Any]) -> None:
    """Q1: each field may have any value; accepted values fit into their columns."""
    _assert_advisory_or_rejected(json.dumps(ADVISORY | fields).encode())


def _assert_advisory_or_rejected(body: bytes) -> None:
    advisory = _parse_or_reject(lambda: parse_advisory(body))
    if advisory is None:
        return
    assert 0 <= advisory.stream_seq < 2**63
    assert 0 <= advisory.deliveries < 2**31
    for text in (advisory.stream, advisory.consumer, advisory.reason or ""):
        assert "\0" not in text
        assert len(text.encode()) <= 4096
    assert advisory.advised_at + timedelta(days=1) > advisory.advised_at.astimezone(UTC)


def test_advisory_above_size_limit_is_rejected() -> None:
    """Q1: this holds even if it could be parsed."""
    body = json.dumps(ADVISORY | {"reason": "r" * MAX_ADVISORY_BYTES}).encode()
    with pytest.raises(RejectedError, match=r"not an advisory: \d+ bytes"):
        parse_advisory(body)
    assert parse_advisory(json.dumps(ADVISORY).encode()).stream_seq == 7


@HYPOTHESIS_SETTINGS
@given(st.dictionaries(st.sampled_from(["event_id", "occurred_at", "redrive_of"]), ANY_TEXT))
@example({"occurred_at": "0001-01-01T00:00:00+14:00"})
@example({"occurred_at": "9999-12-31T23:59:59-14:00"})
@example({"occurred_at": "2026-11-16T06:00:00"})
def test_dead_letter_with_any_headers_can_be_stored(headers: dict[str, str]) -> None:
    """Q1: the event time comes from a header if it is valid; PostgreSQL and Python can represent it."""
    now = datetime(2026, 11, 16, tzinfo=UTC)
    copy = MessageCopy("s", headers, b"", now)
    assert copy.event_time <= now
    assert copy.event_time.astimezone(UTC).year >= 1969
    _ = copy.event_id, copy.origin  # neither raises


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(UUID(int=7)), UUID(int=7)),
        (UUID(int=7).hex.upper(), UUID(int=7)),
        (None, None),
        ("", None),
        ("event", None),
        ("0" * 31, None),
        (f"{UUID(int=7)}0", None),
    ],
)
def test_dead_letter_takes_event_id_and_origin_from_its_headers(text: str | None, expected: UUID | None) -> None:
    """Q1, Q2: each has its own header; a value that is not a UUID is ignored."""
    event_header = {} if text is None else {"event_id": text}
    origin_header = {} if text is None else {"redrive_of": text}
    now = datetime(2026, 11, 16, tzinfo=UTC)
    copy = MessageCopy("s", {**event_header, "redrive_of": str(UUID(int=1))}, b"", now)
    assert (copy.event_id, copy.origin) == (expected, UUID(int=1))
    copy = MessageCopy("s", {**origin_header, "event_id": str(UUID(int=1))}, b"", now)
    assert (copy.event_id, copy.origin) == (UUID(int=1), expected)
