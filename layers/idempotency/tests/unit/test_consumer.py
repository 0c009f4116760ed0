"""C8, C12: `IdempotentConsumer` with single messages and batches."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    FailMode,
    IdempotentConsumer,
    Key,
    KeyState,
    KeyStatus,
    MemoryStore,
    Outcome,
    RetryPolicy,
    business_key,
    by_content_hash,
    by_message_id,
    by_timestamp,
    by_version,
    request_id,
)
from grantwire_idempotency.errors import ConfigError, RetryableError
from layers.idempotency.tests.unit.consumer_doubles import (
    ENTITY,
    NO_RETRY,
    Shop,
    make_message,
)
from layers.idempotency.tests.unit.doubles import logged

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_default_name_is_qualified_name_of_processor() -> None:
    """Two consumers with one store do not share keys."""
    shop = Shop(name=None)
    shop.consumer.process(make_message("1"))
    assert shop.metrics.checks == [(f"{Shop.__module__}.Shop.sell", "new")]


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
