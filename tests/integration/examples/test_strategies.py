"""The examples of docs/idempotency.md: key strategies and duplicate strategies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import IdempotentConsumer, MemoryStore, Message, NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD = {"user": {"id": 7, "email": "a@example.org"}, "order_id": "o1", "version": 2, "at": "2026-11-16T10:00:00Z"}


def message(identifier: str, **changes: Any) -> Message:
    """Return a message about an order."""
    return Message(identifier, body=json.dumps(PAYLOAD | changes), attributes={"request_id": "r1"})


def processed(identify: Callable[..., Any], *messages: Message) -> list[str]:
    """Process the messages; return the ids of those that were not skipped as duplicates."""
    seen: list[str] = []
    store, metrics = MemoryStore(), NoMetrics()
    consumer = IdempotentConsumer(
        store, lambda message: seen.append(message.id), metrics, identify=identify, name="example"
    )
    assert consumer.process_batch(messages) == []
    return seen


def test_message_id() -> None:
    """A message with the same id is skipped."""
    # example message_id
    from grantwire_idempotency import message_id

    identify = message_id  # the default of consumers
    # end of example
    assert processed(identify, message("m1"), message("m2"), message("m1")) == ["m1", "m2"]


def test_business_key() -> None:
    """A message with the same business fields is skipped, even if its message id differs."""
    # example business_key
    from grantwire_idempotency import business_key

    identify = business_key("user.created", "user.id", "user.email")  # SHA-256 of both fields
    # end of example
    other = {"id": 7, "email": "b@example.org"}
    assert processed(identify, message("m1"), message("m2"), message("m3", user=other)) == ["m1", "m3"]


def test_request_id() -> None:
    """A message with the same request id is skipped; without one, its message id counts."""
    # example request_id
    from grantwire_idempotency import request_id

    identify = request_id("request_id")  # without this attribute the message id is the key
    # end of example
    assert processed(identify, message("m1"), message("m2"), Message("m3"), Message("m4")) == ["m1", "m3", "m4"]


def test_entity_key() -> None:
    """A second message about the same entity is skipped."""
    # example entity_key
    from grantwire_idempotency import entity_key

    identify = entity_key("order", "order_id")  # "order:o1"
    # end of example
    assert processed(identify, message("m1"), message("m2"), message("m3", order_id="o2")) == ["m1", "m3"]


def test_payload_hash() -> None:
    """A message with the same payload is skipped."""
    # example payload_hash
    from grantwire_idempotency import payload_hash

    identify = payload_hash("report")  # key order and white space of the JSON do not matter
    # end of example
    assert processed(identify, message("m1"), message("m2"), message("m3", version=3)) == ["m1", "m3"]


def test_by_version() -> None:
    """A message with the same or an older version is skipped."""
    # example by_version
    from grantwire_idempotency import by_version, entity_key

    identify = by_version(entity_key("order", "order_id"), "version")
    # end of example
    versions = [message(f"v{version}", version=version) for version in (2, 1, 2, 4, 3)]
    assert processed(identify, *versions) == ["v2", "v4"]


def test_by_timestamp() -> None:
    """A message with the same or an earlier time is skipped."""
    # example by_timestamp
    from grantwire_idempotency import by_timestamp, entity_key

    identify = by_timestamp(entity_key("order", "order_id"), "at")
    # end of example
    times = ["2026-11-16T10:00:00Z", "2026-11-16T11:00:00+01:00", "2026-11-16T09:59:59Z", "2026-11-16T10:00:00.000001Z"]
    assert processed(identify, *(message(f"m{n}", at=at) for n, at in enumerate(times))) == ["m0", "m3"]


def test_by_content_hash() -> None:
    """The same id with another body is a new message."""
    # example by_content_hash
    from grantwire_idempotency import by_content_hash

    identify = by_content_hash()
    # end of example
    assert processed(identify, message("m1"), message("m1"), message("m1", version=3)) == ["m1", "m1"]


def test_by_message_id() -> None:
    """by_message_id makes a duplicate strategy of any key strategy."""
    # example by_message_id
    from grantwire_idempotency import by_message_id, request_id

    identify = by_message_id(request_id())  # the same as request_id() itself
    # end of example
    assert processed(identify, message("m1"), message("m2")) == ["m1"]


def test_missing_field_is_rejected() -> None:
    """A missing field is a BadRequestError, because two messages without a user are not the same message."""
    from grantwire_idempotency import entity_key
    from grantwire_idempotency.errors import BadRequestError

    with pytest.raises(BadRequestError, match="customer_id is missing"):
        entity_key("customer", "customer_id")(message("m1"))
