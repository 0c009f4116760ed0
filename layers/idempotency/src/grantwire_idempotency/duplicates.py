"""What counts as a duplicate: strategies that make the store's key, with an order where there is one (C3).

    by_message_id()                                      seen before under the same key
    by_version(entity_key("order", "id"), "version")     this version of the entity, or a later one, is done
    by_timestamp(entity_key("order", "id"), "at")        what happened then, or later, to the entity is done
    by_content_hash()                                    the same id with the same content was seen before

A strategy only reads the message. Whether it is a duplicate is decided by the store, atomically: of two workers with
versions 2 and 3 of an entity at the same time, in any order, the store never lets 2 run after 3 was done. Use them as
`identify` of a consumer or as `key` of a job. A message that lacks what a strategy needs is a BadRequestError.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from grantwire_idempotency.errors import BadRequestError, ConfigError
from grantwire_idempotency.keys import KeyStrategy, field_of, fingerprint, message_id, payload_hash, subject_of
from grantwire_idempotency.messages import Message
from grantwire_idempotency.stores.interface import LARGEST_MARK, Key

DuplicateStrategy = Callable[..., Key | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def by_message_id(key: KeyStrategy = message_id) -> DuplicateStrategy:
    """A message is a duplicate if its key was seen before; `key` is any strategy of `grantwire_idempotency.keys`.

    An empty key means the message's id (000); of a plain payload, which has none, it means no idempotency (004).
    """
    _require_key(key)

    def identify(*args: Any, **kwargs: Any) -> Key | None:
        return _key(key, args, kwargs)

    return identify


def by_version(entity: KeyStrategy, version: str = "version") -> DuplicateStrategy:
    """A message is a duplicate if its version of the entity, a whole number from 0, or a later one is done."""
    _require_key(entity)

    def identify(*args: Any, **kwargs: Any) -> Key | None:
        found = field_of(subject_of(args, kwargs), version)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= LARGEST_MARK:
            raise BadRequestError(f"{version} must be a whole number between 0 and {LARGEST_MARK}")
        return _key(entity, args, kwargs, mark=found)

    return identify


def by_timestamp(entity: KeyStrategy, timestamp: str = "timestamp") -> DuplicateStrategy:
    """A message is a duplicate if something as late, or later, was done for the entity.

    The field is RFC 3339 text with an offset, or a number of seconds since 1970. Times are compared in microseconds:
    of two that differ by less, the second is skipped. Where several things can happen at once, use a version.
    """
    _require_key(entity)

    def identify(*args: Any, **kwargs: Any) -> Key | None:
        found = _microseconds(field_of(subject_of(args, kwargs), timestamp))
        if found is None or not 0 <= found <= LARGEST_MARK:
            raise BadRequestError(
                f"{timestamp} must be a time with an offset, such as 2026-01-08T07:10:00Z, or seconds since 1970"
            )
        return _key(entity, args, kwargs, mark=found)

    return identify


def by_content_hash() -> DuplicateStrategy:
    """A message is a duplicate if its id was seen before with the same body; of a plain payload, with all its fields.

    An id that comes again with another body is a new message.
    """
    whole = payload_hash()

    def key(*args: Any, **kwargs: Any) -> str:
        subject = subject_of(args, kwargs)
        return fingerprint([subject.id, subject.body]) if isinstance(subject, Message) else whole(subject)

    return by_message_id(key)


def _key(strategy: KeyStrategy, args: Any, kwargs: Any, mark: int | None = None) -> Key | None:
    subject = subject_of(args, kwargs)
    identifier = subject.id if isinstance(subject, Message) else ""
    value = strategy(*args, **kwargs) or identifier
    return Key(value, mark, message_id=identifier) if value else None


def _microseconds(value: object) -> int | None:
    """Since 1970; None if it is no time."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return None if moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_MARK:
        return None
    return round(value * 1_000_000)


def _require_key(key: object) -> None:
    if not callable(key):
        raise ConfigError(["the key strategy must be a function, such as message_id or entity_key(...)"])
