"""C21: mistakes in the wiring are errors, and messages of every kind of event are read."""

from __future__ import annotations

import base64
import functools
import json
import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from grantwire_idempotency import (
    Backoff,
    IdempotentConsumer,
    InboxGuard,
    InProgress,
    JsonSerializer,
    Key,
    MemoryStore,
    Message,
    NoMetrics,
    TransactionGuard,
    by_content_hash,
    idempotent,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError, InternalError, RejectedError, RetryableError
from layers.idempotency.tests.unit.doubles import FakeTime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

NO_METRICS = NoMetrics()


def make_job(rate: int) -> Callable[[str], int]:
    """Return a closure of a factory."""

    def job(order: str) -> int:
        return rate * len(order)

    return job


def make_job_with_default(rate: int) -> Callable[[str], int]:
    """Return a function of a factory that has its value as a default."""

    def job(order: str, rate: int = rate) -> int:
        return rate * len(order)

    return job


@pytest.mark.parametrize("factory", [make_job, make_job_with_default])
def test_closures_of_one_factory_need_a_name_each(factory: Callable[[int], Any]) -> None:
    """C21: two closures would share their keys, and one would return the result of the other."""
    with pytest.raises(ConfigError, match="name must not be empty"):
        idempotent(MemoryStore(), key=str)(factory(1))
    with pytest.raises(ConfigError, match="name must not be empty"):
        IdempotentConsumer(MemoryStore(), factory(1))
    store = MemoryStore()
    one, two = (idempotent(store, key=str, name=f"rate-{rate}", metrics=NO_METRICS)(factory(rate)) for rate in (1, 2))
    assert (one("abc"), two("abc")) == (3, 6)


async def coroutine(_: object) -> str:
    """Do nothing."""
    return "done"


@functools.wraps(coroutine)
def wrapping(message: object) -> Any:
    """Return a coroutine although it is a plain function."""
    return coroutine(message)


def annotated(message: object) -> Awaitable[str]:
    """Return a coroutine, as the annotation says."""
    return coroutine(message)


@pytest.mark.parametrize("function", [wrapping, annotated])
def test_function_that_returns_a_coroutine_is_refused(function: Any) -> None:
    """C21: the coroutine would be stored as the result, and the work would not be done."""
    with pytest.raises(ConfigError, match="neither a coroutine nor a function that returns one"):
        idempotent(MemoryStore(), key=str, name="job")(function)
    with pytest.raises(ConfigError, match="neither a coroutine nor a function that returns one"):
        IdempotentConsumer(MemoryStore(), function, name="job")


def test_coroutine_that_wiring_could_not_see_is_an_error_at_the_call() -> None:
    """C21: the key is released, because the work was not done."""
    store = MemoryStore()
    job = idempotent(store, key=str, name="job", metrics=NO_METRICS)(lambda order: coroutine(order) if order else None)
    for _ in range(2):
        with pytest.raises(ConfigError, match="returned an awaitable"):
            job("o_1")


@pytest.mark.parametrize("function", [coroutine, wrapping, annotated])
def test_key_function_must_not_return_a_coroutine(function: Any) -> None:
    """C21: a coroutine instead of a key is a mistake in the wiring, not a message with an invalid key."""
    with pytest.raises(ConfigError, match="key must be a plain function"):
        idempotent(MemoryStore(), key=function, name="job")
    with pytest.raises(ConfigError, match="identify must be a plain function"):
        IdempotentConsumer(MemoryStore(), print, name="job", identify=function)


NOWHERE = "postgresql://127.0.0.1:1/nowhere"
WRITE_MESSAGE = (
    "a message must be a Message: write Message(id, body=text) or, for a record of SQS, Message.from_sqs(record), not a"
)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: IdempotentConsumer(MemoryStore(), print, name="c").process(cast("Any", {"id": 1})),
            f"{WRITE_MESSAGE} dict",
        ),
        (
            lambda: IdempotentConsumer(MemoryStore(), print, name="c").process_batch([cast("Any", "m-1")]),
            f"{WRITE_MESSAGE} str",
        ),
        (
            lambda: InboxGuard(NOWHERE, name="c").run(cast("Any", {"id": 1}), print),
            f"{WRITE_MESSAGE} dict",
        ),
        (
            lambda: TransactionGuard(NOWHERE).run(cast("Any", {"id": 1}), cast("Any", print)),
            "a request must be a RequestIdentity: write RequestIdentity.create(caller, route, key, fields), not a dict",
        ),
    ],
)
def test_call_with_the_wrong_object_says_what_to_write(call: Callable[[], object], sentence: str) -> None:
    """C30: instead of an AttributeError of the library."""
    with pytest.raises(InternalError) as raised:
        call()
    assert str(raised.value) == sentence


def test_backoff_names_every_wrong_field() -> None:
    """C30: a number has no unit."""
    with pytest.raises(ConfigError) as raised:
        Backoff(1, 60, timedelta(-1), "1", -1)  # type: ignore[arg-type]
    times = "must be a timedelta of at least zero, such as timedelta(seconds=1)"
    factors = "must be a number of at least zero, such as 0.5"
    assert raised.value.problems == (
        f"base of a Backoff {times}, not 1",
        f"cap of a Backoff {times}, not 60",
        f"floor of a Backoff {times}, not datetime.timedelta(days=-1)",
        f"jitter_min of a Backoff {factors}, not '1'",
        f"jitter_max of a Backoff {factors}, not -1",
    )
    with pytest.raises(ConfigError, match="jitter_min of a Backoff must not be larger"):
        Backoff(timedelta(0), timedelta(0), timedelta(0), 2, 1)


def test_decorator_without_its_arguments_says_what_to_write() -> None:
    """C30: neither a TypeError nor a decorated function that does nothing."""

    def job(order: str) -> str:
        return order

    with pytest.raises(ConfigError, match=r'write @idempotent\(store, key=argument\("order_id"\)\)'):
        idempotent(job)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"key is required, such as key=argument\(...\)"):
        idempotent(MemoryStore())  # type: ignore[call-overload]


class WithFile:
    """Has the methods of a serializer, for files."""

    def dump(self, value: object, file: object) -> None:
        """Write the value to a file."""

    def load(self, file: object) -> object:
        """Read a value from a file."""


@pytest.mark.parametrize(
    ("serializer", "described"),
    [
        (json, "the module json"),
        (pickle, "the module pickle"),
        (JsonSerializer, "the class JsonSerializer"),
        (WithFile(), "a WithFile"),
        (None, "None"),
    ],
)
def test_serializer_that_needs_a_file_is_refused(serializer: Any, described: str) -> None:
    """C30: `json` has `dump` and `load`; its first call would fail after the effect."""
    problem = f"such as JsonSerializer\\(\\), not {described}$"
    for wire in (
        lambda: idempotent(MemoryStore(), key=str, name="job", serializer=serializer),
        lambda: IdempotentConsumer(MemoryStore(), print, name="c", serializer=serializer),
        lambda: InboxGuard(NOWHERE, name="c", serializer=serializer),
    ):
        with pytest.raises(ConfigError, match=problem):
            wire()


def test_dead_letter_hook_that_returns_a_coroutine_takes_no_message() -> None:
    """C21: nothing has stored the message, so it returns to the queue."""

    def process(_: Message) -> None:
        raise RejectedError("no")

    consumer = IdempotentConsumer(
        MemoryStore(), process, NO_METRICS, name="consumer", dead_letter=lambda message, _error: coroutine(message)
    )
    assert consumer.process_batch([Message("m1")]) == ["m1"]
    assert consumer.process_batch([Message("m1")]) == ["m1"]


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
