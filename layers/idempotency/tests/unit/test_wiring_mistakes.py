"""C21: mistakes in the wiring are errors."""

from __future__ import annotations

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
    JsonSerializer,
    MemoryStore,
    Message,
    NoMetrics,
    TransactionGuard,
    idempotent,
)
from grantwire_idempotency.errors import ConfigError, InternalError, RejectedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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


def test_guard_with_wrong_settings_says_what_it_needs() -> None:
    """C30: when it is created."""
    settings: Any = {"ttl": timedelta(hours=1)}
    with pytest.raises(ConfigError, match="settings must be a GuardSettings, not a dict"):
        TransactionGuard("postgresql://127.0.0.1:1/app", settings)


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
