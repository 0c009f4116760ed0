"""C3: duplicate strategies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    Key,
    Message,
    by_content_hash,
    by_message_id,
    by_timestamp,
    by_version,
    entity_key,
    request_id,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

ENTITY = entity_key("order", "id")


def message(identifier: str = "m_1", **payload: Any) -> Message:
    """Return a message about an order."""
    return Message(identifier, body=json.dumps({"id": "o_1", **payload}))


def mark(strategy: Callable[..., Key | None], **payload: Any) -> int:
    """Return the mark that a strategy makes of a payload."""
    key = strategy(message(**payload))
    assert key is not None
    assert key.value == "order:o_1"
    assert key.mark is not None
    return key.mark


def test_message_id_is_key_without_mark() -> None:
    """C3: messages without an order are identified by their id."""
    assert by_message_id()(message("m_7")) == Key("m_7", message_id="m_7")


def test_empty_key_of_message_falls_back_to_message_id() -> None:
    """C2, 000: the sender has set no request id."""
    identify = by_message_id(request_id())
    assert identify(message("m_7")) == Key("m_7", message_id="m_7")
    with_id = Message("m_7", attributes={"request_id": "r_1"})
    assert identify(with_id) == Key("r_1", message_id="m_7")


def test_empty_key_of_mapping_means_no_idempotency() -> None:
    """C2, 004: a job has no message id to fall back to."""
    assert by_message_id(request_id())({"id": "o_1"}) is None
    assert by_version(request_id())({"version": 1}) is None


def test_version_is_mark_of_entity_key() -> None:
    """C3: the message ids do not matter."""
    assert mark(by_version(ENTITY), version=0) == 0
    assert mark(by_version(ENTITY), version=2**53 - 1) == 2**53 - 1
    assert mark(by_version(ENTITY, "meta.revision"), meta={"revision": 12}) == 12


@pytest.mark.parametrize("version", [-1, 1.0, "1", True, 2**53, [1]])
def test_version_must_be_supported_integer(version: object) -> None:
    """C3: every store must be able to compare it."""
    with pytest.raises(BadRequestError, match="version must be an integer"):
        by_version(ENTITY)(message(version=version))


@pytest.mark.parametrize("strategy", [by_version(ENTITY), by_timestamp(ENTITY)])
def test_message_without_version_or_time_is_rejected(strategy: Callable[..., object]) -> None:
    """C3: the error names the missing field."""
    with pytest.raises(BadRequestError, match=r"(version|timestamp) is missing"):
        strategy(message(version=None, timestamp=None))


@pytest.mark.parametrize(
    "timestamp",
    [
        "2026-01-08T07:10:00.000001Z",
        "2026-01-08T08:10:00.000001+01:00",
        "2026-01-08T07:10:00.000001999-00:00",
        1767856200.000001,
    ],
)
def test_equal_times_have_equal_marks(timestamp: object) -> None:
    """C3: offsets and epoch seconds are equivalent, to the microsecond."""
    assert mark(by_timestamp(ENTITY), timestamp=timestamp) == 1_767_856_200_000_001


def test_later_time_has_larger_mark() -> None:
    """C3: by one microsecond, across offsets, and up to the largest supported mark."""
    times: list[object] = [0, "2026-01-08T07:10:00+01:00", "2026-01-08T07:10:00Z", "2026-01-08T07:10:00.000001Z"]
    times += [9_007_199_254, "2255-06-05T23:47:34.740991Z"]
    marks = [mark(by_timestamp(ENTITY), timestamp=time) for time in times]
    assert marks == sorted(set(marks))


@pytest.mark.parametrize(
    "timestamp",
    [
        "2026-01-08T07:10:00",
        "2026-01-08",
        "yesterday",
        "",
        "1767856200",
        "1969-12-31T23:59:59Z",
        "2300-01-01T00:00:00Z",
        -1,
        1_767_856_200_000,
        10**400,
        True,
        [],
    ],
)
def test_invalid_time_is_rejected(timestamp: object) -> None:
    """C3: for example no offset, no date, or milliseconds instead of seconds."""
    with pytest.raises(BadRequestError, match="timestamp must be a time with an offset"):
        by_timestamp(ENTITY)(message(timestamp=timestamp))


def test_infinite_number_is_not_a_time() -> None:
    """C3: 1e999 is valid JSON."""
    with pytest.raises(BadRequestError, match="timestamp must be a time"):
        by_timestamp(ENTITY)(Message("m_1", body='{"id": "o_1", "timestamp": 1e999}'))


def test_same_id_with_other_content_is_new() -> None:
    """C3, 001: the hash separates the id from the data."""
    messages = [Message("m_1", body="x"), Message("m_1", body="y"), Message("m_1x", body=""), Message("m_", body="1x")]
    keys = {key.value for key in map(by_content_hash(), messages) if key is not None}
    assert len(keys) == 4
    assert by_content_hash()(messages[0]) == by_content_hash()(Message("m_1", "other", "x", {"a": "b"}))


def test_content_hash_covers_the_bytes_of_a_body() -> None:
    """C30: text is its UTF-8 encoding; other bytes have a key too."""
    bodies: list[str | bytes] = ["ä", "ä".encode(), b"\xff", b"\xfe", "\ud800"]
    keys = [key.value for key in (by_content_hash()(Message("m_1", body=body)) for body in bodies) if key]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_content_hash_of_mapping_covers_all_fields() -> None:
    """C3: a mapping has no separate id."""
    assert by_content_hash()({"a": 1, "b": 2}) == by_content_hash()({"b": 2, "a": 1})
    assert by_content_hash()({"a": 1}) != by_content_hash()({"a": 2})


@pytest.mark.parametrize("strategy", [by_message_id, by_version, by_timestamp])
def test_strategy_requires_callable_key_strategy(strategy: Callable[[Any], object]) -> None:
    """C5: creating a strategy validates its arguments."""
    with pytest.raises(ConfigError, match="key strategy"):
        strategy(None)
