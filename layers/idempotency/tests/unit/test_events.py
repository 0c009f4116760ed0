"""C21: messages of every kind of event are read."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    IdempotentConsumer,
    MemoryStore,
    Message,
    NoMetrics,
    by_content_hash,
)
from grantwire_idempotency.errors import BadRequestError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_METRICS = NoMetrics()


def consume(event: Any, **options: Any) -> tuple[Any, list[tuple[str, str, str | bytes]]]:
    """Handle an event and return the response and the messages."""
    seen: list[tuple[str, str, str | bytes]] = []
    consumer = IdempotentConsumer(
        MemoryStore(),
        lambda message: seen.append((message.id, message.type, message.body)),
        NO_METRICS,
        name="consumer",
        **options,
    )
    return consumer.handle(event), seen


SNS = {"MessageId": "s1", "Message": "hello", "MessageAttributes": {"type": {"Type": "String", "Value": "greeting"}}}
EVENTBRIDGE = {"id": "e1", "detail-type": "order", "source": "shop", "detail": {"total": 5}}


@pytest.mark.parametrize(
    ("event", "messages"),
    [
        ({"Records": [{"eventSource": "aws:sqs", "messageId": "m1", "body": "hello"}]}, [("m1", "", "hello")]),
        ({"Records": [{"EventSource": "aws:sns", "Sns": SNS}]}, [("s1", "greeting", "hello")]),
        (
            {
                "Records": [
                    {
                        "eventSource": "aws:sqs",
                        "messageId": "m1",
                        "body": json.dumps({**SNS, "Type": "Notification", "TopicArn": "arn"}),
                    }
                ]
            },
            [("s1", "greeting", "hello")],
        ),
        (
            {"Records": [{"eventSource": "aws:sqs", "messageId": "m1", "body": json.dumps(EVENTBRIDGE)}]},
            [("e1", "order", '{"total": 5}')],
        ),
        (EVENTBRIDGE, [("e1", "order", '{"total": 5}')]),
        (
            {
                "eventSource": "aws:kafka",
                "records": {
                    "orders-0": [
                        {
                            "topic": "orders",
                            "partition": 0,
                            "offset": 15,
                            "value": base64.b64encode(b"hello").decode(),
                            "headers": [{"type": list(b"greeting")}],
                        }
                    ]
                },
            },
            [("orders-0-15", "greeting", "hello")],
        ),
    ],
    ids=["sqs", "sns", "sns-in-sqs", "eventbridge-in-sqs", "eventbridge", "kafka"],
)
def test_each_kind_of_event_is_read(event: Any, messages: list[tuple[str, str, str]]) -> None:
    """C21: the id is the one that stays the same when the message is delivered again."""
    response, seen = consume(event)
    assert response == {"batchItemFailures": []}
    assert seen == messages


@pytest.mark.parametrize(
    "event",
    [{}, None, {"Records": None}, {"Records": [{"eventSource": "aws:s3"}]}, {"detail": {}}, {"records": {}}, []],
)
def test_event_of_unknown_kind_is_an_error(event: Any) -> None:
    """C21: if the function succeeded, the messages would be lost."""
    with pytest.raises(BadRequestError):
        consume(event)


AVRO = b"\x00\xff"


def make_kafka_record(offset: int, value: bytes) -> dict[str, Any]:
    """Return a Kafka record of partition 0."""
    return {"topic": "orders", "partition": 0, "offset": offset, "value": base64.b64encode(value).decode()}


def test_invalid_kafka_record_fails_alone() -> None:
    """C21: the other partitions go on; the later records of its own partition wait, as after any failure."""
    seen: list[str] = []
    consumer = IdempotentConsumer(MemoryStore(), lambda message: seen.append(message.id), NO_METRICS, name="consumer")
    records = {
        "orders-0": [
            make_kafka_record(1, b"one"),
            {**make_kafka_record(2, b""), "value": "ä"},
            make_kafka_record(3, b""),
        ],
        "orders-1": [{**make_kafka_record(1, b"one"), "partition": 1}, {"topic": "orders"}],
    }
    with pytest.raises(RetryableError, match="3 of 5 messages"):
        consumer.handle({"eventSource": "aws:kafka", "records": records})
    assert seen == ["orders-0-1", "orders-1-1"]


def test_binary_kafka_record_is_processed_and_can_be_a_dead_letter() -> None:
    """C30: its body is bytes. It does not block its partition: the processor or the dead-letter hook takes it."""
    seen: list[str | bytes] = []
    dead: list[tuple[str | bytes, str]] = []

    def process(message: Message) -> None:
        seen.append(message.body)
        if message.body == AVRO:
            message.payload  # noqa: B018 - not JSON, which no retry can change

    consumer = IdempotentConsumer(
        MemoryStore(),
        process,
        NO_METRICS,
        name="consumer",
        identify=by_content_hash(),
        dead_letter=lambda message, error: dead.append((message.body, type(error).__name__)),
    )
    headers = [{"type": list(b"avro")}, {"trace": [-1, 254]}]
    records = [make_kafka_record(1, AVRO), make_kafka_record(2, b"\xfe"), make_kafka_record(3, "ä".encode())]
    event = {
        "eventSource": "aws:kafka",
        "records": {"orders-0": [{**record, "headers": headers} for record in records]},
    }
    assert consumer.handle(event) == consumer.handle(event) == {"batchItemFailures": []}
    assert seen == [AVRO, b"\xfe", "ä"]
    assert dead == [(AVRO, "BadRequestError")]


def test_header_of_a_kafka_record_is_kept_if_it_is_text() -> None:
    """C30: Lambda writes bytes as numbers, which can be negative."""
    attributes: list[Mapping[str, str]] = []
    consumer = IdempotentConsumer(
        MemoryStore(), lambda message: attributes.append(message.attributes), NO_METRICS, name="consumer"
    )
    headers = [{"type": list(b"avro")}, {"trace": [-1, 254]}, {"city": [75, -61, -74, 108, 110]}]
    record = {**make_kafka_record(1, b""), "headers": headers}
    consumer.handle({"eventSource": "aws:kafka", "records": {"orders-0": [record]}})
    assert attributes == [{"type": "avro", "city": "Köln"}]


def test_message_of_a_source_without_partial_response_is_delivered_again() -> None:
    """C21: Lambda repeats the event only if the function fails."""

    def fail(_: Message) -> None:
        raise OSError("no")

    consumer = IdempotentConsumer(MemoryStore(), fail, NO_METRICS, name="consumer", sleep=lambda _: None)
    with pytest.raises(RetryableError, match="1 of 1 messages"):
        consumer.handle(EVENTBRIDGE)
