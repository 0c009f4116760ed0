"""C21: a message with items, each of which is remembered."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from grantwire_idempotency import (
    IdempotentConsumer,
    InProgress,
    Key,
    MemoryStore,
    Message,
    NoMetrics,
)
from grantwire_idempotency.errors import BadRequestError
from layers.idempotency.tests.unit.doubles import FakeTime

NO_METRICS = NoMetrics()


def test_each_item_of_a_message_is_remembered() -> None:
    """C21, 001: after a failure only the items that are not done run again, under the key message:item."""
    done: list[str] = []
    failing = {"m1:b"}

    def process(item: Message) -> str:
        if item.id in failing:
            raise ValueError("no")
        done.append(item.id)
        return str(item.payload["name"])

    store = MemoryStore()
    consumer = IdempotentConsumer(
        store,
        process,
        NO_METRICS,
        name="items",
        items=lambda message: [(item["id"], item) for item in message.payload["items"]],
        sleep=lambda _: None,
    )
    message = Message("m1", body=json.dumps({"items": [{"id": name, "name": name.upper()} for name in "abc"]}))
    with pytest.raises(ValueError, match="no"):
        consumer.process(message)
    assert done == ["m1:a"]
    failing.clear()
    rest = consumer.process(message)
    assert (rest.value, rest.replayed) == (["A", "B", "C"], False)
    assert done == ["m1:a", "m1:b", "m1:c"]
    again = consumer.process(message)
    assert (again.value, again.replayed) == (["A", "B", "C"], True)


def test_items_of_a_message_share_its_lease() -> None:
    """C21: each item is claimed for the time that is left, so no claim lasts longer than the lease of the message."""
    time = FakeTime()
    store = MemoryStore(clock=time.clock)
    ends: list[float] = []

    def process(item: Message) -> None:
        check = store.check(Key(f"items:{item.id}"), timedelta(days=1))
        assert isinstance(check, InProgress)
        ends.append(time.now + check.free_in.total_seconds())
        time.advance(timedelta(minutes=3))

    consumer = IdempotentConsumer(
        store,
        process,
        NO_METRICS,
        name="items",
        items=lambda message: [(item, item) for item in message.payload],
        clock=time.clock,
    )
    started = time.now
    consumer.process(Message("m1", body='["a", "b", "c"]'), timedelta(minutes=10))
    assert ends == [started + 600] * 3


def test_colon_in_an_id_never_makes_two_items_the_same() -> None:
    """C21: item 1:2 of message m is not item 2 of message m:1."""
    done: list[str] = []
    consumer = IdempotentConsumer(
        MemoryStore(),
        lambda item: done.append(item.payload),
        NO_METRICS,
        name="items",
        items=lambda message: [(item, f"{message.id} {item}") for item in message.payload],
    )
    for identifier, items in (("m", ["1:2", "1%3A2"]), ("m:1", ["2"])):
        consumer.process(Message(identifier, body=json.dumps(items)))
    assert done == ["m 1:2", "m 1%3A2", "m:1 2"]


def test_item_without_its_own_id_is_rejected() -> None:
    """C21: two items with one id could not be told apart."""
    consumer = IdempotentConsumer(
        MemoryStore(), lambda _: None, NO_METRICS, name="items", items=lambda _: [("a", 1), ("a", 2)]
    )
    with pytest.raises(BadRequestError, match="its own id"):
        consumer.process(Message("m1"))
