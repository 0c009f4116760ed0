"""Duplicate strategies: functions that make the store's key, with a mark if messages have an order (C3).

    by_message_id()                                      the same key is a duplicate
    by_version(entity_key("order", "id"), "version")     the same or an older version of the entity is a duplicate
    by_timestamp(entity_key("order", "id"), "at")        the same or an earlier time for the entity is a duplicate
    by_content_hash()                                    the same id with the same content is a duplicate

A strategy only reads the message. The store decides atomically whether it is a duplicate: if two workers process
versions 2 and 3 of an entity concurrently, version 2 never runs after version 3 is completed. Pass a strategy as
`identify` of a consumer or as `key` of a job. It raises BadRequestError if the message lacks a required field.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from grantwire_idempotency._internal.keys.arguments import ONLY_OF_JOBS, ArgumentStrategy
from grantwire_idempotency._internal.keys.messages import Message
from grantwire_idempotency._internal.keys.strategies import (
    KeyStrategy,
    find_subject,
    get_field,
    hash_body,
    hash_json,
    message_id,
    payload_hash,
)
from grantwire_idempotency._internal.stores.interface import MAX_MARK, Key
from grantwire_idempotency.errors import BadRequestError, ConfigError

DuplicateStrategy = Callable[..., Key | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def by_message_id(key: KeyStrategy = message_id) -> DuplicateStrategy:
    """Treat a message as a duplicate if its key is completed; `key` is a key strategy such as `business_key`.

    An empty key means the message id (000). A mapping has no message id, so it runs without idempotency then (004).
    """
    _require_key(key)

    def identify(*args: Any, **kwargs: Any) -> Key | None:
        return _make_key(key, args, kwargs)

    return identify


def by_version(entity: KeyStrategy, version: str = "version") -> DuplicateStrategy:
    """Treat a message as a duplicate if the same or a later version of its entity is completed.

    The version is an integer of at least 0 in the field `version`.
    """
    _require_key(entity)

    def identify(*args: Any, **kwargs: Any) -> Key | None:
        mark = get_field(find_subject(args, kwargs), version)
        if isinstance(mark, bool) or not isinstance(mark, int) or not 0 <= mark <= MAX_MARK:
            raise BadRequestError(f"{version} must be an integer between 0 and {MAX_MARK}")
        return _make_key(entity, args, kwargs, mark)

    return identify


def by_timestamp(entity: KeyStrategy, timestamp: str = "timestamp") -> DuplicateStrategy:
    """Treat a message as a duplicate if a message with the same or a later time is completed for its entity.

    The field is an RFC 3339 string with an offset, or a number of seconds since 1970. Times are compared in
    microseconds, so two messages within one microsecond count as equal. If that can happen, use a version.
    """
    _require_key(entity)

    def identify(*args: Any, **kwargs: Any) -> Key | None:
        mark = _to_microseconds(get_field(find_subject(args, kwargs), timestamp))
        if mark is None or not 0 <= mark <= MAX_MARK:
            raise BadRequestError(
                f"{timestamp} must be a time with an offset, such as 2026-01-08T07:10:00Z, or seconds since 1970"
            )
        return _make_key(entity, args, kwargs, mark)

    return identify


def by_content_hash() -> DuplicateStrategy:
    """Treat a message as a duplicate if its id is completed with the same body; a mapping, if all fields are equal.

    Text and the bytes of its UTF-8 encoding are the same body. The same id with another body is a new message.
    """
    hash_payload = payload_hash()

    def key(*args: Any, **kwargs: Any) -> str:
        subject = find_subject(args, kwargs)
        if isinstance(subject, Message):
            return hash_json([subject.id, hash_body(subject.body)])
        return hash_payload(subject)

    return by_message_id(key)


def _make_key(strategy: KeyStrategy, args: Any, kwargs: Any, mark: int | None = None) -> Key | None:
    subject = find_subject(args, kwargs)
    identifier = subject.id if isinstance(subject, Message) else ""
    value = strategy(*args, **kwargs) or identifier
    return Key(value, mark, message_id=identifier) if value else None


def _to_microseconds(value: object) -> int | None:
    """Return the microseconds since 1970, or None if the value is not a time with an offset."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return None if moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_MARK:
        return None
    return round(value * 1_000_000)


def _require_key(key: object) -> None:
    if isinstance(key, ArgumentStrategy):
        raise ConfigError([ONLY_OF_JOBS])
    if not callable(key):
        raise ConfigError(["the key strategy must be a function, such as message_id or entity_key(...)"])
