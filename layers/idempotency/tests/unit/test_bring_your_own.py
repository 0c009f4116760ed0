"""C16: the fail mode of a store, and the logger and serializer of the user, are used by every part that takes them."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aws_lambda_powertools import Logger

from grantwire_idempotency import (
    BreakerStore,
    CircuitBreaker,
    Compensation,
    FailMode,
    FilteredStore,
    IdempotentConsumer,
    Key,
    LockManager,
    LruFilter,
    MemoryStore,
    Message,
    NoMetrics,
    ProcessedMessages,
    idempotent,
)
from grantwire_idempotency.errors import ConfigError, RejectedError, RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import Store

MINUTE = timedelta(minutes=1)
NO_METRICS = NoMetrics()
DOWN = RetryableError("down")


class UnavailableStore(FailingStore):
    """A store with a fail mode that is never available."""

    def __init__(self, fail_mode: FailMode) -> None:
        super().__init__()
        self.fail_mode = fail_mode
        self.failing = {"check": [DOWN] * 10}


def wrap_breaker(store: Store) -> Store:
    """Return the store behind a circuit breaker that does not open."""
    return BreakerStore(store, CircuitBreaker("keys", failures=100, rest=MINUTE))


def wrap_filter(store: Store) -> Store:
    """Return the store behind a filter."""
    return FilteredStore(store, LruFilter(10))


@pytest.mark.parametrize("wrap", [lambda store: store, wrap_breaker, wrap_filter], ids=["store", "breaker", "filter"])
def test_fail_mode_of_the_store_is_the_default(wrap: Callable[[Store], Store]) -> None:
    """C16: also through a store that wraps it; the argument of a job or a consumer takes precedence."""
    is_open, is_closed = (wrap(UnavailableStore(mode)) for mode in (FailMode.OPEN, FailMode.CLOSED))
    with pytest.raises(RetryableError, match="down"):
        idempotent(is_closed, key=str, name="job", metrics=NO_METRICS)(str)("o_1")
    assert IdempotentConsumer(is_open, print, NO_METRICS, name="job").process_batch([Message("m1")]) == []
    with pytest.raises(RetryableError, match="down"):
        idempotent(is_open, key=str, name="job", metrics=NO_METRICS, fail_mode=FailMode.CLOSED)(str)("o_1")
    consumer = IdempotentConsumer(is_closed, print, NO_METRICS, name="job", fail_mode=FailMode.OPEN)
    assert consumer.process_batch([Message("m1")]) == []


class Lines(logging.Handler):
    """Keeps the messages that a logger gets."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


@pytest.fixture(params=["standard", "powertools"])
def own(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[Any, list[str]]]:
    """Return a logger of the user and its messages; no line may go to the logger of the library."""
    lines = Lines()
    logger: Any = logging.getLogger("own") if request.param == "standard" else Logger("own")
    logger.setLevel("DEBUG")
    logger.addHandler(lines)
    yield logger, lines.messages
    logger.removeHandler(lines)
    assert [record.getMessage() for record in caplog.records if record.name == "grantwire_idempotency"] == []


Own = tuple[Any, list[str]]


class BrokenMetrics(NoMetrics):
    """Metrics that fail."""

    def flush(self) -> None:
        """Fail."""
        raise OSError("full")


def test_job_logs_to_the_logger_of_the_user(own: Own) -> None:
    """C16: every line of a job, also about its metrics and its late records."""
    logger, messages = own
    store = FailingStore()
    job = idempotent(store, key=lambda order: order, name="job", metrics=BrokenMetrics(), logger=logger)(str)
    job("")
    store.failing = {"check": [DOWN] * 2}
    job("o_1")
    store.failing = {"store_result": [ValueError("bug")]}
    job("o_2")
    job("o_2")
    assert [message for message in messages if "metrics" not in message] == [
        "no idempotency key, processing without idempotency",
        "idempotency check failed, processing anyway",
        "could not write late record",
        "duplicate task skipped",
    ]
    assert messages.count("could not write idempotency metrics") == 3


def test_consumer_logs_to_the_logger_of_the_user(own: Own) -> None:
    """C16: the lines of a message, of its attempts, and of a batch."""
    logger, messages = own

    def process(message: Message) -> None:
        raise RejectedError("no") if message.id == "rejected" else OSError("no")

    consumer = IdempotentConsumer(
        MemoryStore(), process, NO_METRICS, name="consumer", logger=logger, sleep=lambda _: None
    )
    consumer.handle_sqs({"Records": [{"messageId": "rejected", "body": ""}, {"messageId": "m1", "body": ""}, {}]})
    retried = ["attempt failed, retrying"] * 2
    assert messages == ["message failed", *retried, "message failed", "invalid record"]


def test_circuit_breaker_logs_to_the_logger_of_the_user(own: Own) -> None:
    """C16: opened and closed."""
    logger, messages = own
    breaker = CircuitBreaker("keys", failures=1, rest=MINUTE, logger=logger)
    with pytest.raises(RetryableError), breaker.guard():
        raise DOWN
    with breaker.guard(force=True):
        pass
    assert messages == ["circuit opened", "circuit closed"]


def test_compensation_logs_to_the_logger_of_the_user(own: Own) -> None:
    """C16: an undo step that fails."""
    logger, messages = own
    with suppress(OSError), Compensation(logger=logger) as undo:
        undo.on_failure(int, "x")
        raise OSError("no")
    assert messages == ["undo step failed"]


class MemoryLocks(LockManager):
    """Locks whose responses can be lost."""

    owner: str | None = None
    lost = 0
    fence = 1
    error: Exception | None = None

    def extend(self, _ttl: timedelta) -> bool:
        """Extend nothing."""
        return True

    def release(self) -> bool:
        """Release the lock, or fail."""
        if self.error is not None:
            raise self.error
        was_held, self.owner = self.owner is not None, None
        return was_held

    def _try_acquire(self, _key: str, token: str, _ttl: timedelta) -> MemoryLocks | None:
        if self.owner not in (None, token):
            return None
        self.owner = token
        if self.lost:
            self.lost -= 1
            raise DOWN
        return self


def test_locks_log_to_the_logger_of_the_user(own: Own) -> None:
    """C16: a lock that was lost, and one that could not be released."""
    logger, messages = own
    locks = MemoryLocks(logger=logger)
    with suppress(OSError), locks.acquire("job", MINUTE):
        locks.owner = None
        raise OSError("no")
    with locks.acquire("job", MINUTE):
        locks.error = DOWN
    assert messages == ["lock lost", "could not release lock, it expires automatically"]


def test_lost_response_does_not_block_the_lock() -> None:
    """C20: the attempt is repeated under the same token and gets the lock that the first one took."""
    locks = MemoryLocks()
    locks.lost = 1
    with locks.acquire("job", MINUTE):
        assert locks.owner is not None
    locks.lost = 2
    with pytest.raises(RetryableError, match="down"):
        locks.acquire("job", MINUTE)


@pytest.mark.parametrize(
    "create",
    [
        lambda: CircuitBreaker("keys", failures=1, rest=MINUTE, logger=print),  # type: ignore[arg-type]
        lambda: Compensation(logger=print),  # type: ignore[arg-type]
        lambda: MemoryLocks(logger=print),  # type: ignore[arg-type]
        lambda: idempotent(MemoryStore(), key=str, name="job", logger=print),  # type: ignore[call-overload]
    ],
)
def test_logger_must_be_a_logger(create: Callable[[], object]) -> None:
    """C16: a mistake in the wiring is an error at once."""
    with pytest.raises(ConfigError, match="logger must be a logger"):
        create()


class Marked:
    """A serializer whose texts no other serializer can read."""

    def dump(self, value: Any) -> str:
        """Return the JSON with a mark."""
        return f"own {json.dumps(value)}"

    def load(self, text: str) -> Any:
        """Read the JSON after the mark."""
        mark, _, rest = text.partition(" ")
        assert mark == "own"
        return json.loads(rest)


def test_results_are_stored_by_the_serializer_of_the_user() -> None:
    """C16: jobs, consumers, and the adapter with the methods of the articles."""
    store = MemoryStore()
    job = idempotent(store, key=str, name="job", metrics=NO_METRICS, serializer=Marked())(lambda order: [order])
    assert job("o_1") == job("o_1") == ["o_1"]
    consumer = IdempotentConsumer(store, lambda message: [message.id], NO_METRICS, name="consumer", serializer=Marked())
    assert consumer.process(Message("m1")).value == consumer.process(Message("m1")).value == ["m1"]
    adapter = ProcessedMessages(store, serializer=Marked())
    adapter.mark_processed("m2", ["m2"])
    assert adapter.get_processed_result("m2") == ["m2"]
    stored = [read_result(store, key) for key in ("job:o_1", "consumer:m1", "m2")]
    assert stored == ['own ["o_1"]', 'own ["m1"]', 'own ["m2"]']


def test_late_record_is_written_by_the_serializer_of_the_user() -> None:
    """C16, C20: that of an unguarded run."""
    store = FailingStore()
    job = idempotent(store, key=str, name="job", metrics=NO_METRICS, serializer=Marked())(lambda order: [order])
    store.failing = {"check": [DOWN] * 2}
    job("o_1")
    assert job("o_1") == ["o_1"]
    assert read_result(store.inner, "job:o_1") == 'own ["o_1"]'


def read_result(store: MemoryStore, key: str) -> str | None:
    """Return the stored text of a result."""
    state = store.get_result(Key(key))
    return None if state is None else state.result
