"""A shop whose consumer records its sales, and messages for it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency import (
    Backoff,
    IdempotentConsumer,
    Key,
    KeyState,
    MemoryStore,
    Message,
    RetryPolicy,
    entity_key,
)
from layers.idempotency.tests.unit.doubles import FailingStore, FakeTime, RecordedMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

FIFO = "arn:aws:sqs:us-east-1:123456789012:orders.fifo"
STANDARD = "arn:aws:sqs:us-east-1:123456789012:orders"
NO_RETRY = RetryPolicy(max_attempts=1)
ENTITY = entity_key("order", "id")


def broken(*_: object) -> None:
    """Raise an error as a mistake of an author does."""
    raise KeyError("an author's mistake")


class Shop:
    """A consumer of orders that records its sales and raises configured errors."""

    def __init__(self, **options: Any) -> None:
        self.time = FakeTime()
        self.store = FailingStore(MemoryStore(clock=self.time.clock))
        self.metrics = RecordedMetrics()
        self.sold: list[str] = []
        # The errors of the next attempts, by message id.
        self.failing: dict[str, list[BaseException]] = {}
        self.duration = timedelta(0)
        wiring: dict[str, Any] = {"name": "shop", "rand": lambda: 0.5} | options
        self.consumer = IdempotentConsumer(
            self.store, self.sell, self.metrics, sleep=self.time.sleep, clock=self.time.clock, **wiring
        )

    def sell(self, message: Message) -> dict[str, Any]:
        """Process a message."""
        self.time.advance(self.duration)
        if self.failing.get(message.id):
            raise self.failing[message.id].pop(0)
        self.sold.append(message.id)
        return {"sale": len(self.sold)}

    def state(self, message_id: str) -> KeyState | None:
        """Return the state of a message in the store."""
        return self.store.inner.get_result(Key(f"shop:{message_id}"))


def make_message(identifier: str, group: str | None = None, **payload: Any) -> Message:
    """Return a message about an order."""
    return Message(identifier, "order", json.dumps(payload), group=group)


def record(identifier: str, group: str | None = None, queue: str = FIFO, **payload: Any) -> dict[str, Any]:
    """Return an SQS record as Lambda receives it."""
    attributes = {"ApproximateReceiveCount": "1"} | ({} if group is None else {"MessageGroupId": group})
    return {
        "messageId": identifier,
        "receiptHandle": "r",
        "body": json.dumps(payload),
        "attributes": attributes,
        "messageAttributes": {
            "request_id": {"dataType": "String", "stringValue": f"request-{identifier}", "stringListValues": []},
            "event_type": {"dataType": "String", "stringValue": "order.created"},
            "picture": {"dataType": "Binary", "binaryValue": "AAAA"},
        },
        "eventSource": "aws:sqs",
        "eventSourceARN": queue,
        "awsRegion": "us-east-1",
    }


def failures(response: Mapping[str, Any]) -> list[str]:
    """Return the ids in a partial batch response."""
    assert list(response) == ["batchItemFailures"]
    return [item["itemIdentifier"] for item in response["batchItemFailures"]]


def every(pause: timedelta) -> Backoff:
    """Return the same delay after each attempt."""
    return Backoff(pause, pause, pause, 1.0, 1.0)
