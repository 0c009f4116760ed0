"""C12: the attempts of a consumer at a message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from grantwire_idempotency import (
    Message,
    RetryPolicy,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError
from layers.idempotency.tests.unit.consumer_doubles import (
    Shop,
    every,
    make_message,
)
from layers.idempotency.tests.unit.doubles import FakeContext, logged


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
        shop = Shop(retry=RetryPolicy(max_attempts=9, backoff=every(timedelta(seconds=5))))
        shop.duration = timedelta(seconds=20)
        shop.failing = {"1": [OSError("no")] * 9}
        with pytest.raises(OSError, match="no"):
            shop.consumer.process(make_message("1"), lease=timedelta(minutes=1))
        assert shop.time.slept == [5.0]

    def test_no_attempt_starts_in_last_second_of_lambda(self) -> None:
        """C12: with 10 s remaining and delays of 4.75 s, a third attempt would start in the last second."""
        shop = Shop(retry=RetryPolicy(max_attempts=9, backoff=every(timedelta(seconds=4.75))))
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
