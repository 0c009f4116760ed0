"""C8, C12: `IdempotentConsumer` with single messages and batches."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)

from grantwire_idempotency import (
    Backoff,
    Claim,
    FailMode,
    IdempotentConsumer,
    Key,
    KeyState,
    KeyStatus,
    MemoryStore,
    Message,
    Outcome,
    RetryPolicy,
    business_key,
    by_content_hash,
    by_message_id,
    by_timestamp,
    by_version,
    entity_key,
    request_id,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError, InternalError, RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore, FakeContext, FakeTime, RecordedMetrics, logged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIFO = "arn:aws:sqs:us-east-1:123456789012:orders.fifo"
STANDARD = "arn:aws:sqs:us-east-1:123456789012:orders"
NO_RETRY = RetryPolicy(max_attempts=1)
ENTITY = entity_key("order", "id")


def _broken(*_: object) -> None:
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


class TestIdempotentConsumer:
    """001: the behaviour that the document specifies."""

    def test_duplicate_returns_stored_result(self) -> None:
        """C3, C8: `msg-001` is processed once."""
        shop = Shop()
        assert shop.consumer.process(make_message("msg-001")) == Outcome({"sale": 1}, replayed=False)
        assert shop.consumer.process(make_message("msg-001")) == Outcome({"sale": 1}, replayed=True)
        assert shop.sold == ["msg-001"]
        assert shop.metrics.checks == [("shop", "new"), ("shop", "duplicate")]
        assert shop.metrics.flushes == 2

    def test_older_or_equal_version_is_skipped(self) -> None:
        """C3: the version decides, independent of the message ids."""
        shop = Shop(identify=by_version(ENTITY))
        for identifier, version in [("a", 2), ("b", 1), ("c", 2), ("d", 3)]:
            shop.consumer.process(make_message(identifier, id="o_1", version=version))
        shop.consumer.process(make_message("e", id="o_2", version=1))
        assert shop.sold == ["a", "d", "e"]

    def test_failed_version_keeps_previous_completion(self) -> None:
        """C3: version 3 can be retried after a failure, and version 2 is still a duplicate."""
        shop = Shop(identify=by_version(ENTITY), retry=NO_RETRY)
        shop.consumer.process(make_message("a", id="o_1", version=2))
        shop.failing = {"b": [ValueError("no")]}
        with pytest.raises(ValueError, match="no"):
            shop.consumer.process(make_message("b", id="o_1", version=3))
        assert shop.consumer.process(make_message("a", id="o_1", version=2)).replayed
        assert not shop.consumer.process(make_message("b", id="o_1", version=3)).replayed
        assert shop.sold == ["a", "b"]

    def test_earlier_or_equal_timestamp_is_skipped(self) -> None:
        """C3: times are compared across time zones."""
        shop = Shop(identify=by_timestamp(ENTITY, "at"))
        for identifier, at in [
            ("a", "2026-01-08T07:10:00Z"),
            ("b", "2026-01-08T07:10:00Z"),
            ("c", "2026-01-08T08:10:00+01:00"),
            ("d", "2026-01-08T07:09:59.999999Z"),
            ("e", "2026-01-08T07:10:00.000001Z"),
        ]:
            shop.consumer.process(make_message(identifier, id="o_1", at=at))
        assert shop.sold == ["a", "e"]

    def test_same_content_is_skipped(self) -> None:
        """C3: the same id with another body is a new message."""
        shop = Shop(identify=by_content_hash())
        for amount in (1, 1, 2):
            shop.consumer.process(make_message("m_1", amount=amount))
        assert shop.sold == ["m_1", "m_1"]

    def test_same_business_event_is_skipped(self) -> None:
        """C2, 000: two messages about one registration are processed once."""
        shop = Shop(identify=business_key("user.created", "user_id", "email"))
        shop.consumer.process(make_message("a", user_id=1, email="a@b.example"))
        shop.consumer.process(make_message("b", user_id=1, email="a@b.example"))
        shop.consumer.process(make_message("c", user_id=2, email="a@b.example"))
        assert shop.sold == ["a", "c"]

    @pytest.mark.parametrize("identify", [request_id(), by_message_id(request_id()), lambda _: None])
    def test_empty_key_falls_back_to_message_id(self, identify: Callable[..., Any]) -> None:
        """C2, 000: a message without a key is identified by its id."""
        shop = Shop(identify=identify)
        shop.consumer.process(make_message("m_1"))
        shop.consumer.process(make_message("m_1"))
        shop.consumer.process(make_message("m_2"))
        assert shop.sold == ["m_1", "m_2"]
        assert shop.state("m_1") == KeyState(KeyStatus.COMPLETED, '{"sale": 1}')

    @pytest.mark.parametrize(("options", "days"), [({}, 1), ({"ttl": timedelta(days=7)}, 7)])
    def test_key_is_new_after_ttl(self, options: dict[str, Any], days: int) -> None:
        """000: the TTL is one day by default."""
        shop = Shop(**options)
        shop.consumer.process(make_message("m_1"))
        shop.time.advance(timedelta(days=days, microseconds=-1))
        assert shop.consumer.process(make_message("m_1")).replayed
        shop.time.advance(timedelta(microseconds=1))
        assert not shop.consumer.process(make_message("m_1")).replayed

    @pytest.mark.parametrize("identify", [by_message_id(), business_key("user", "id"), by_version(ENTITY)])
    def test_store_gets_message_id_and_type(self, identify: Callable[..., Any]) -> None:
        """C1: the store keeps `message_id` and `message_type` for people who inspect it."""
        shop = Shop(identify=identify)
        seen: list[Key] = []
        check = shop.store.inner.check

        def record_call(key: Key, ttl: timedelta, token: str | None) -> Any:
            seen.append(key)
            return check(key, ttl, token)

        shop.store.inner.check = record_call  # type: ignore[method-assign, assignment]
        shop.consumer.process(make_message("m_1", id="o_1", version=1))
        assert [(key.message_id, key.message_type) for key in seen] == [("m_1", "shop")]

    def test_redelivered_batch_runs_only_failed_message(self) -> None:
        """C8, 001: of messages 1, 2 (fails) and 3, a redelivery of the batch runs only 2."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"2": [ValueError("no")]}
        batch = [make_message("1"), make_message("2"), make_message("3")]
        assert shop.consumer.process_batch(batch) == ["2"]
        assert shop.sold == ["1", "3"]
        assert shop.consumer.process_batch(batch) == []
        assert shop.sold == ["1", "3", "2"]
        assert shop.metrics.flushes == 2

    def test_failure_releases_key(self) -> None:
        """001: only successful work counts as processed."""
        shop = Shop(retry=NO_RETRY)
        shop.failing = {"1": [ValueError("no")]}
        with pytest.raises(ValueError, match="no"):
            shop.consumer.process(make_message("1"))
        assert shop.state("1") == KeyState(KeyStatus.FAILED, error="ValueError: no")
        assert shop.consumer.process(make_message("1")).value == {"sale": 1}


class TestRetry:
    """C12: attempts with backoff, then the dead-letter hook."""

    def test_retries_happen_within_one_claim(self, caplog: pytest.LogCaptureFixture) -> None:
        """C12, O4: three attempts with delays of 1 s and 2 s need one check."""
        shop = Shop()
        shop.failing = {"1": [OSError("one"), OSError("two")]}
        assert shop.consumer.process(make_message("1")).value == {"sale": 1}
        assert shop.time.slept == [1.0, 2.0]
        assert shop.store.calls == ["check", "store_result"]
        lines = logged(caplog, "WARNING", "ERROR")
        assert [(line["level"], line["attempt"], line["message_id"]) for line in lines] == [
            ("WARNING", 1, "1"),
            ("WARNING", 2, "1"),
        ]

    def test_last_error_is_raised_after_last_attempt(self, caplog: pytest.LogCaptureFixture) -> None:
        """C12: it is logged with its traceback, the message id and the number of attempts."""
        shop = Shop(retry=RetryPolicy(max_attempts=2))
        last = OSError("two")
        shop.failing = {"1": [OSError("one"), last, OSError("three")]}
        with pytest.raises(OSError, match="two") as raised:
            shop.consumer.process(make_message("1"))
        assert raised.value is last
        assert shop.time.slept == [1.0]
        (line,) = logged(caplog, "ERROR")
        assert (line["message"], line["message_id"], line["attempts"]) == ("message failed", "1", 2)
        assert "OSError: two" in line["exception"]

    @pytest.mark.parametrize(
        ("permanent", "error"),
        [
            ((), BadRequestError("bad")),
            ((KeyError, ValueError), ValueError("bad")),
            ((KeyError, ValueError), BadRequestError("bad")),
        ],
    )
    def test_permanent_error_is_not_retried(self, permanent: tuple[type[Exception], ...], error: Exception) -> None:
        """C12, C21: the type of an error decides; `permanent_errors` adds to RejectedError instead of replacing it."""
        shop = Shop(retry=RetryPolicy(permanent_errors=permanent))
        shop.failing = {"1": [error]}
        with pytest.raises(type(error)):
            shop.consumer.process(make_message("1"))
        assert shop.time.slept == []
        assert shop.sold == []

    def test_message_returns_to_queue_if_only_the_time_ends(self) -> None:
        """C12: it is not a dead letter, and the next delivery succeeds."""
        dead_letters: list[Message] = []
        shop = Shop(dead_letter=lambda message, _: dead_letters.append(message))
        shop.failing = {"1": [OSError("not yet"), OSError("not yet")]}
        assert shop.consumer.process_batch([make_message("1")], FakeContext(shop.time, shop.time.now + 3)) == ["1"]
        assert shop.consumer.process_batch([make_message("1")]) == []
        assert (shop.sold, dead_letters) == (["1"], [])

    def test_no_attempt_starts_that_could_outlast_claim(self) -> None:
        """C12: each attempt takes 20 s of a minute; the second ends at 45 s, and a third would end at 70 s."""
        shop = Shop(retry=RetryPolicy(max_attempts=9, backoff=_every(timedelta(seconds=5))))
        shop.duration = timedelta(seconds=20)
        shop.failing = {"1": [OSError("no")] * 9}
        with pytest.raises(OSError, match="no"):
            shop.consumer.process(make_message("1"), lease=timedelta(minutes=1))
        assert shop.time.slept == [5.0]

    def test_no_attempt_starts_in_last_second_of_lambda(self) -> None:
        """C12: with 10 s remaining and delays of 4.75 s, a third attempt would start in the last second."""
        shop = Shop(retry=RetryPolicy(max_attempts=9, backoff=_every(timedelta(seconds=4.75))))
        shop.failing = {"1": [OSError("no")] * 9}
        context = FakeContext(shop.time, shop.time.now + 10)
        assert shop.consumer.process_batch([make_message("1")], context) == ["1"]
        assert shop.time.slept == [4.75]

    def test_interrupt_ends_batch_and_releases_key(self) -> None:
        """An interrupt is not retried."""
        shop = Shop()
        shop.failing = {"1": [KeyboardInterrupt()]}
        with pytest.raises(KeyboardInterrupt):
            shop.consumer.process_batch([make_message("1"), make_message("2")])
        assert shop.sold == []
        assert shop.time.slept == []
        assert shop.metrics.flushes == 1
        assert shop.consumer.process_batch([make_message("1"), make_message("2")]) == []


def _every(pause: timedelta) -> Backoff:
    return Backoff(pause, pause, pause, 1.0, 1.0)


class TestDeadLetters:
    """C12: the dead-letter hook gets a message after its last attempt."""

    def test_message_accepted_by_hook_is_not_redelivered(self) -> None:
        """C12, C20: the message is recognised when it is delivered again; only a redrive runs it."""
        dead_letters: list[tuple[Message, Exception]] = []
        shop = Shop(dead_letter=lambda *letter: dead_letters.append(letter))
        error = OSError("three")
        shop.failing = {"1": [OSError("one"), OSError("two"), error]}
        assert shop.consumer.process_batch([make_message("1"), make_message("2")]) == []
        assert dead_letters == [(make_message("1"), error)]
        assert shop.state("1") == KeyState(KeyStatus.FAILED, error="dead letter 1: OSError: three")
        for _ in range(2):
            again = shop.consumer.process(make_message("1"))
            assert (again.replayed, str(again.dead_letter)) == (True, "OSError: three")
        assert (shop.sold, len(dead_letters)) == (["2"], 1)
        assert shop.consumer.process(make_message("1"), redrive=True) == Outcome({"sale": 2}, replayed=False)
        assert shop.consumer.process(make_message("1")) == Outcome({"sale": 2}, replayed=True)

    def test_outcome_contains_dead_letter_error(self) -> None:
        """C12: the outcome of a dead letter has the error and no value."""
        shop = Shop(dead_letter=lambda *_: None)
        error = BadRequestError("bad")
        shop.failing = {"1": [error]}
        assert shop.consumer.process(make_message("1")) == Outcome(None, replayed=False, dead_letter=error)

    def test_message_returns_to_queue_if_hook_fails(self, caplog: pytest.LogCaptureFixture) -> None:
        """C12: the caller gets the error of the processor, not of the hook; both are logged."""

        def broken(*_: object) -> None:
            raise RuntimeError("the dead-letter queue is away")

        shop = Shop(dead_letter=broken, retry=NO_RETRY)
        shop.failing = {"1": [OSError("no")] * 2}
        with pytest.raises(OSError, match="no"):
            shop.consumer.process(make_message("1"))
        assert shop.consumer.process_batch([make_message("1")]) == ["1"]
        first, second, *_ = logged(caplog, "ERROR")
        assert first["message"] == "message failed"
        assert second["message"] == "dead-letter hook failed, message returned to queue"
        assert "the dead-letter queue is away" in second["exception"]

    def test_message_without_required_field_is_dead_letter_immediately(self) -> None:
        """C12: a retry cannot supply the missing field, so the store is not called."""
        dead_letters: list[str] = []
        shop = Shop(
            identify=by_version(ENTITY),
            dead_letter=lambda message, error: dead_letters.append(f"{message.id}: {error}"),
        )
        good = make_message("2", id="o_1", version=1)
        assert shop.consumer.process_batch([make_message("1", id="o_1"), Message("3", body="{"), good]) == []
        assert dead_letters == ["1: version is missing", "3: the body of the message is not valid JSON"]
        assert shop.store.calls == ["check", "store_result"]

    @pytest.mark.parametrize("identify", [lambda _: "k" * 252, lambda _: 7, _broken])
    def test_message_with_invalid_key_is_dead_letter(self, identify: Callable[..., Any]) -> None:
        """C12: the key is too long with the consumer's name, is not a string, or cannot be made."""
        dead_letters: list[str] = []
        shop = Shop(identify=identify, dead_letter=lambda message, _: dead_letters.append(message.id))
        assert shop.consumer.process_batch([make_message("1")]) == []
        assert (dead_letters, shop.sold, shop.store.calls) == (["1"], [], [])

    def test_message_without_time_to_retry_is_not_dead_letter(self, caplog: pytest.LogCaptureFixture) -> None:
        """C12: it has attempts left, and the next invocation has more time."""
        dead_letters: list[Message] = []
        shop = Shop(dead_letter=lambda message, _: dead_letters.append(message))
        shop.failing = {"1": [OSError("one"), OSError("two")]}
        assert shop.consumer.process_batch([make_message("1")], FakeContext(shop.time, shop.time.now + 3)) == ["1"]
        assert (dead_letters, shop.time.slept) == ([], [1.0])
        assert logged(caplog, "WARNING")[-1]["message"] == "message failed, no time left to retry"
        assert shop.consumer.process_batch([make_message("1")], FakeContext(shop.time, shop.time.now + 3)) == []
        assert shop.sold == ["1"]

    def test_hook_does_not_change_error_chain(self) -> None:
        """The caller gets the processor's own chain of errors."""
        shop = Shop(dead_letter=_broken, retry=NO_RETRY)
        error = ValueError("no")
        error.__cause__ = OSError("why")
        shop.failing = {"1": [error]}
        with pytest.raises(ValueError, match="no") as raised:
            shop.consumer.process(make_message("1"))
        assert raised.value.__cause__ is error.__cause__
        assert str(raised.value.__cause__) == "why"

    @pytest.mark.parametrize(
        ("store_error", "message"),
        [
            (RetryableError("down"), "idempotency store unavailable, message returned to queue"),
            (InternalError("a bug"), "unexpected error, message returned to queue"),
        ],
    )
    def test_store_failure_makes_no_dead_letter(
        self, store_error: Exception, message: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C12: the message stays in the queue without an attempt."""
        dead_letters: list[Message] = []
        shop = Shop(dead_letter=lambda message, _: dead_letters.append(message))
        tries = 2 if isinstance(store_error, RetryableError) else 1
        shop.store.failing = {"check": [store_error] * 2 * tries}
        assert shop.consumer.process_batch([make_message("1"), make_message("2"), make_message("3")]) == ["1", "2"]
        assert (shop.sold, dead_letters, shop.time.slept) == (["3"], [], [])
        lines = [line for line in logged(caplog, "WARNING", "ERROR") if line.get("message_id")]
        assert [line["message_id"] for line in lines] == ["1", "2"]
        assert {line["message"] for line in lines} == {message}

    def test_message_in_progress_is_not_dead_letter(self, caplog: pytest.LogCaptureFixture) -> None:
        """C12: it is neither an attempt nor an error, because another worker is processing it."""
        dead_letters: list[Message] = []
        shop = Shop(dead_letter=lambda message, _: dead_letters.append(message))
        claim = shop.store.inner.check(Key("shop:1"), timedelta(minutes=1))
        assert isinstance(claim, Claim)
        assert shop.consumer.process_batch([make_message("1"), make_message("2")]) == ["1"]
        assert (shop.sold, dead_letters, shop.time.slept) == (["2"], [], [])
        (line,) = logged(caplog, "INFO", "WARNING", "ERROR")
        assert (line["level"], line["message_id"]) == ("INFO", "1")

    def test_unstorable_result_makes_no_dead_letter(self) -> None:
        """The work is done: the message returns to the queue once and is a duplicate then."""
        dead_letters: list[Message] = []
        runs: list[str] = []

        def process(message: Message) -> object:
            runs.append(message.id)
            return object()

        consumer = IdempotentConsumer(
            MemoryStore(),
            process,
            RecordedMetrics(),
            dead_letter=lambda message, _: dead_letters.append(message),
            name="shop",
        )
        assert consumer.process_batch([make_message("1")]) == ["1"]
        assert consumer.process_batch([make_message("1")]) == []
        assert (runs, dead_letters) == (["1"], [])

    def test_retryable_error_of_processor_is_retried(self) -> None:
        """C12: a RetryableError of the processor is retried and can become a dead letter."""
        dead_letters: list[Exception] = []
        shop = Shop(dead_letter=lambda _, error: dead_letters.append(error))
        errors = [RetryableError("busy"), RetryableError("busy"), RetryableError("still busy")]
        shop.failing = {"1": list(errors)}
        shop.consumer.process(make_message("1"))
        assert dead_letters == [errors[2]]


class TestFailMode:
    """C6: the default of consumers is CLOSED."""

    def test_closed_leaves_messages_in_queue(self, caplog: pytest.LogCaptureFixture) -> None:
        """C6: an ERROR is logged, and a line with the message id."""
        shop = Shop()
        shop.store.failing = {"check": [RetryableError("down")] * 4}
        with pytest.raises(RetryableError, match="down"):
            shop.consumer.process(make_message("1"))
        assert shop.consumer.process_batch([make_message("1")]) == ["1"]
        assert shop.sold == []
        error, warning, *_ = logged(caplog, "WARNING", "ERROR")
        assert (error["level"], error["message"]) == ("ERROR", "idempotency check failed")
        assert (warning["level"], warning["message_id"]) == ("WARNING", "1")

    def test_open_processes_without_store(self) -> None:
        """C6, C12: the run is counted as unguarded; retries work as usual."""
        shop = Shop(fail_mode=FailMode.OPEN)
        shop.store.failing = {"check": [RetryableError("down")] * 2}
        shop.failing = {"1": [OSError("one")]}
        assert shop.consumer.process(make_message("1")) == Outcome({"sale": 1}, replayed=False)
        assert shop.metrics.unguarded_runs == ["shop"]


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
        shop = Shop(retry=RetryPolicy(max_attempts=9, backoff=_every(timedelta(seconds=4))))
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


@pytest.mark.parametrize(
    ("wiring", "problem"),
    [
        ({"storage": None}, "the store must be a Store, not None"),
        ({"processor": None}, "processor must be a function, not None"),
        ({"processor": lambda _: None}, "name must not be empty"),
        ({"metrics": "none"}, "metrics must be IdempotencyMetrics"),
        ({"identify": None}, "identify must be a function"),
        ({"ttl": None}, "ttl must be a positive timedelta"),
        ({"ttl": timedelta(0)}, "ttl must be a positive timedelta"),
        ({"fail_mode": "open"}, "fail_mode must be"),
        ({"retry": None}, "retry must be a RetryPolicy"),
        ({"dead_letter": "queue"}, "dead_letter must be a function"),
        ({"name": "a b"}, "name must be"),
    ],
)
def test_invalid_argument_raises_config_error(wiring: dict[str, Any], problem: str) -> None:
    """C5, C8: creating a consumer validates its arguments before the first message."""
    parts: dict[str, Any] = {"storage": MemoryStore(), "processor": Shop().sell} | wiring
    with pytest.raises(ConfigError, match=problem) as raised:
        IdempotentConsumer(**parts)
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize("lease", [timedelta(0), 5])
def test_lease_must_be_positive_timedelta(lease: Any) -> None:
    """C8: an invalid lease is rejected before the store is called."""
    shop = Shop()
    with pytest.raises(ConfigError, match="lease must be a positive timedelta"):
        shop.consumer.process(make_message("1"), lease)
    assert shop.store.calls == []


def test_config_error_lists_every_problem() -> None:
    """C5: one error names every invalid argument, including the three of document 001."""
    with pytest.raises(ConfigError) as raised:
        IdempotentConsumer(None, None, 7, identify=None, ttl=None, fail_mode="x", retry=None)  # type: ignore[call-overload]
    assert len(raised.value.problems) == 7


@pytest.mark.parametrize(
    "parts",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"backoff": None},
        {"permanent_errors": ValueError},
        {"permanent_errors": ("ValueError",)},
        {"permanent_errors": (ValueError, int)},
    ],
)
def test_invalid_retry_policy_raises_config_error(parts: dict[str, Any]) -> None:
    """C12: creating a RetryPolicy validates its fields."""
    with pytest.raises(ConfigError, match="must be"):
        RetryPolicy(**parts)


def test_default_backoff_grows_up_to_one_minute() -> None:
    """C12, O4: the delays are 1 s, 2 s, 4 s and so on, with jitter."""
    backoff = RetryPolicy().backoff
    assert [backoff.delay(attempt, lambda: 0.5).total_seconds() for attempt in (1, 2, 6, 7, 99)] == [1, 2, 32, 60, 60]
    assert [backoff.delay(1, rand).total_seconds() for rand in (lambda: 0.0, lambda: 1.0)] == [0.5, 1.5]


def test_default_name_is_qualified_name_of_processor() -> None:
    """Two consumers with one store do not share keys."""
    shop = Shop(name=None)
    shop.consumer.process(make_message("1"))
    assert shop.metrics.checks == [(f"{__name__}.Shop.sell", "new")]


def test_default_metrics_are_written_for_cloudwatch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: in a Lambda function, a batch writes one line, and one more for each result."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    consumer = IdempotentConsumer(MemoryStore(), Shop().sell, name="shop")
    consumer.process_batch([make_message("1"), make_message("1"), make_message("2")])
    batch, *totals = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(batch["idempotency_check_duration_seconds"]) == 3
    assert {line["result"]: line["idempotency_check_total"] for line in totals} == {"new": [2.0], "duplicate": [1.0]}


def test_logs_contain_neither_body_nor_key(caplog: pytest.LogCaptureFixture) -> None:
    """The message id identifies a message in the logs; its content stays private."""
    shop = Shop(identify=business_key("order", "secret"), dead_letter=lambda *_: None)
    shop.failing = {"1": [OSError("one"), OSError("two"), OSError("three")]}
    shop.store.failing = {"check": [RetryableError("down")] * 2}
    batch = [make_message("0", secret="hush"), make_message("1", secret="hush"), make_message("2", secret=None)]
    shop.consumer.process_batch(batch)
    lines = logged(caplog, "INFO", "WARNING", "ERROR")
    assert {line["message_id"] for line in lines if "message_id" in line} == {"0", "1", "2"}
    key = business_key("order", "secret")(batch[1])
    assert "hush" not in str(lines)
    assert key not in str(lines)


def test_processor_may_raise_stop_iteration() -> None:
    """C24: it is retried like any error, and the dead-letter hook gets it as it is; permanent errors are recognised."""
    error = StopIteration("no more")
    taken: list[BaseException] = []
    shop = Shop(dead_letter=lambda _, error: taken.append(error))
    shop.failing = {"1": [error] * 3}
    outcome = shop.consumer.process(make_message("1"))
    assert outcome.dead_letter is error
    assert taken == [error]
    other = Shop(retry=RetryPolicy(permanent_errors=(StopIteration,)))
    other.failing = {"1": [error]}
    with pytest.raises(StopIteration):
        other.consumer.process(make_message("1"))
    assert other.time.slept == []
