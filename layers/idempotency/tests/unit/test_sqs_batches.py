"""C8: batches of SQS, with Lambda's partial response and with the batch processors of Powertools."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)

from grantwire_idempotency import (
    IdempotentConsumer,
    Key,
    MemoryStore,
    Message,
    RetryPolicy,
)
from grantwire_idempotency.errors import BadRequestError
from layers.idempotency.tests.unit.consumer_doubles import (
    NO_RETRY,
    STANDARD,
    Shop,
    every,
    failures,
    make_message,
    record,
)
from layers.idempotency.tests.unit.doubles import FakeContext, RecordedMetrics, logged


class TestSqs:
    """C8: Lambda's partial batch response."""

    def test_failures_are_reported_and_other_messages_processed(self) -> None:
        """C8: in a standard queue; a redelivery of the batch skips the completed messages."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"2": [ValueError("no")]}
        event = {"Records": [record(str(number), queue=STANDARD) for number in range(1, 5)]}
        assert failures(shop.consumer.handle_sqs(event, None)) == ["2"]
        assert failures(shop.consumer.handle_sqs(event, None)) == []
        assert shop.sold == ["1", "3", "4", "2"]
        assert shop.metrics.flushes == 2

    def test_failure_blocks_later_messages_of_its_group(self) -> None:
        """C8: in a FIFO queue; other groups continue."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"2": [ValueError("no")]}
        records = [record("1", "a"), record("2", "a"), record("3", "b"), record("4", "a"), record("5", "b")]
        assert failures(shop.consumer.handle_sqs({"Records": records})) == ["2", "4"]
        assert shop.sold == ["1", "3", "5"]
        assert failures(shop.consumer.handle_sqs({"Records": [records[1], records[3]]})) == []
        assert shop.sold == ["1", "3", "5", "2", "4"]

    def test_group_of_standard_queue_does_not_block(self) -> None:
        """C8: the other messages of the group are processed, so their receive count does not grow."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"1": [ValueError("no")]}
        records = [record("1", "tenant", STANDARD), record("2", "tenant", STANDARD)]
        assert failures(shop.consumer.handle_sqs({"Records": records})) == ["1"]
        assert shop.sold == ["2"]

    def test_dead_letter_does_not_block_its_group(self) -> None:
        """C12: a message that the hook accepted is handled."""
        shop = Shop(dead_letter=lambda *_: None)
        shop.failing = {"1": [BadRequestError("bad")]}
        assert failures(shop.consumer.handle_sqs({"Records": [record("1", "a"), record("2", "a")]})) == []
        assert shop.sold == ["2"]

    def test_empty_event_returns_empty_response(self) -> None:
        """C8: an event without records has no failures."""
        assert Shop().consumer.handle_sqs({"Records": []}, None) == {"batchItemFailures": []}

    def test_event_without_record_list_is_rejected(self) -> None:
        """Otherwise all its records would be lost."""
        with pytest.raises(BadRequestError, match="Records"):
            Shop().consumer.handle_sqs({"Records": {"messageId": "1"}}, None)

    @pytest.mark.parametrize(
        ("broken", "reported"),
        [
            ({"messageId": "2"}, "2"),
            ({"messageId": "2", "body": None}, "2"),
            ({"messageId": "2", "body": {"a": 1}}, "2"),
            ({"body": "{}"}, ""),
            ({"messageId": "", "body": "{}"}, ""),
            ({"messageId": 2, "body": "{}"}, ""),
            (None, ""),
            ("2", ""),
        ],
    )
    def test_invalid_record_fails_alone(self, broken: Any, reported: str, caplog: pytest.LogCaptureFixture) -> None:
        """C8: without an id, Lambda treats the whole batch as failed, which loses no message."""
        shop = Shop()
        assert failures(shop.consumer.handle_sqs({"Records": [record("1"), broken, record("3")]})) == [reported]
        assert shop.sold == ["1", "3"]
        (line,) = logged(caplog, "ERROR")
        assert line["message"] == "invalid record"

    def test_invalid_record_blocks_its_group(self) -> None:
        """C8: a FIFO queue keeps its order."""
        shop = Shop()
        broken = record("1", "a") | {"body": None}
        assert failures(shop.consumer.handle_sqs({"Records": [broken, record("2", "a")]})) == ["1", "2"]
        assert shop.sold == []

    def test_remaining_messages_return_to_queue_when_time_ends(self, caplog: pytest.LogCaptureFixture) -> None:
        """C8: each message takes 3.1 s of 10 s; the fourth would start in the last second."""
        shop = Shop()
        shop.duration = timedelta(seconds=3.1)
        event = {"Records": [record(str(number)) for number in range(1, 7)]}
        context = FakeContext(shop.time, shop.time.now + 10)
        assert failures(shop.consumer.handle_sqs(event, context)) == ["4", "5", "6"]
        assert shop.sold == ["1", "2", "3"]
        (line,) = logged(caplog, "WARNING")
        assert line["left"] == 3
        assert failures(shop.consumer.handle_sqs(event, FakeContext(shop.time, shop.time.now + 30))) == []
        assert shop.sold == ["1", "2", "3", "4", "5", "6"]

    def test_claim_expires_one_second_after_lambda(self) -> None:
        """A crashed run blocks its message for the remaining time plus one second."""
        shop = Shop()
        leases: list[timedelta] = []
        check = shop.store.inner.check

        def record_call(key: Key, ttl: timedelta, token: str | None) -> Any:
            leases.append(ttl)
            return check(key, ttl, token)

        shop.store.inner.check = record_call  # type: ignore[method-assign, assignment]
        shop.duration = timedelta(seconds=2)
        event = {"Records": [record("1"), record("2")]}
        shop.consumer.handle_sqs(event, FakeContext(shop.time, shop.time.now + 10))
        shop.consumer.process(make_message("3"))
        shop.consumer.process(make_message("4"), timedelta(seconds=5))
        assert leases == [timedelta(seconds=11), timedelta(seconds=9), timedelta(minutes=15), timedelta(seconds=5)]

    def test_message_is_parsed_from_sqs_record(self) -> None:
        """It has the string attributes, the type from one of them, and the group of a FIFO queue."""
        parsed = Message.from_sqs(record("1", "a", n=1))
        attributes = {"request_id": "request-1", "event_type": "order.created"}
        assert parsed == Message("1", "order.created", '{"n": 1}', attributes, "a")
        assert parsed.payload == {"n": 1}
        assert Message.from_sqs(record("1", "a", STANDARD)).group is None
        assert Message.from_sqs({"messageId": "1", "body": ""}) == Message("1")

    def test_each_attempt_gets_original_payload(self) -> None:
        """C12: changes to the payload do not affect the next attempt."""
        seen: list[int] = []

        def process(message: Message) -> None:
            payload = message.payload
            seen.append(payload.pop("n"))
            if len(seen) == 1:
                raise OSError("no")

        consumer = IdempotentConsumer(MemoryStore(), process, RecordedMetrics(), name="shop", sleep=lambda _: None)
        consumer.process(make_message("1", n=7))
        assert seen == [7, 7]


class TestPowertools:
    """C8: the consumer as `record_handler` of Powertools' batch processors."""

    def test_consumer_is_record_handler_of_batch_processor(self) -> None:
        """C8: BatchProcessor reports the failed message; the redelivery skips the completed messages."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"2": [ValueError("no")]}
        processor = BatchProcessor(event_type=EventType.SQS)
        event = {"Records": [record(str(number), queue=STANDARD) for number in range(1, 4)]}
        handler = shop.consumer.process_record
        responses = [process_partial_response(event, handler, processor, None) for _ in range(2)]
        assert [failures(response) for response in responses] == [["2"], []]
        assert shop.sold == ["1", "3", "2"]
        assert processor.success_messages != []

    @pytest.mark.parametrize(("by_group", "failed"), [(False, ["2", "3", "4"]), (True, ["2", "4"])])
    def test_consumer_is_record_handler_of_fifo_processor(self, by_group: bool, failed: list[str]) -> None:
        """C8: SqsFifoPartialProcessor stops at the first failure, or within its group."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"2": [ValueError("no")]}
        records = [record("1", "a"), record("2", "a"), record("3", "b"), record("4", "a")]
        processor = SqsFifoPartialProcessor(skip_group_on_error=by_group)
        response = process_partial_response({"Records": records}, shop.consumer.process_record, processor, None)
        assert failures(response) == failed

    def test_powertools_passes_context(self) -> None:
        """C8: so claims expire with the Lambda function's time."""
        shop = Shop(retry=RetryPolicy(max_attempts=9, backoff=every(timedelta(seconds=4))))
        shop.failing = {"1": [OSError("no")] * 9}
        processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
        context: Any = FakeContext(shop.time, shop.time.now + 10)
        response = process_partial_response(
            {"Records": [record("1")]}, shop.consumer.process_record, processor, context
        )
        assert failures(response) == ["1"]
        assert shop.time.slept == [4.0, 4.0]

    def test_powertools_gets_stored_result_of_duplicate(self) -> None:
        """C5: `processor.process()` returns the stored result."""
        shop = Shop()
        processor = BatchProcessor(event_type=EventType.SQS)
        results = []
        for _ in range(2):
            with processor([record("1")], shop.consumer.process_record):
                results += [(status, result) for status, result, _ in processor.process()]
        assert results == [("success", {"sale": 1})] * 2
        assert shop.metrics.flushes == 2
