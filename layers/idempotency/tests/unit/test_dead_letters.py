"""C12: the dead-letter hook of a consumer."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    Claim,
    IdempotentConsumer,
    Key,
    KeyState,
    KeyStatus,
    MemoryStore,
    Message,
    Outcome,
    by_version,
)
from grantwire_idempotency.errors import BadRequestError, InternalError, RetryableError
from layers.idempotency.tests.unit.consumer_doubles import (
    ENTITY,
    NO_RETRY,
    Shop,
    broken,
    make_message,
)
from layers.idempotency.tests.unit.doubles import FakeContext, RecordedMetrics, logged

if TYPE_CHECKING:
    from collections.abc import Callable


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

    @pytest.mark.parametrize("identify", [lambda _: "k" * 252, lambda _: 7, broken])
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
        shop = Shop(dead_letter=broken, retry=NO_RETRY)
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
