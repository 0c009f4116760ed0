"""C5, C6: `@idempotent` on handlers, jobs and methods."""

from __future__ import annotations

import functools
import inspect
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    FailMode,
    InProgress,
    Key,
    MemoryStore,
    NoMetrics,
    business_key,
    by_version,
    entity_key,
    idempotent,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError, RequestInProgressError, RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore, FakeContext, FakeTime, RecordedMetrics, logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

NO_METRICS = NoMetrics()


def test_repeat_returns_stored_result() -> None:
    """C5, 004 AC2: the duplicate does not run and gets the result of the first call."""
    charged: list[str] = []

    @idempotent(MemoryStore(), key=business_key("order", "order_id"), name="job", metrics=NO_METRICS)
    def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
        charged.append(event["order_id"])
        return {"charge": len(charged)}

    results = [handler({"order_id": order}, None) for order in ("o_1", "o_1", "o_2", "o_1")]
    assert results == [{"charge": 1}, {"charge": 1}, {"charge": 2}, {"charge": 1}]
    assert charged == ["o_1", "o_2"]


def test_function_and_key_get_original_arguments() -> None:
    """Positional and keyword arguments are passed on unchanged."""

    @idempotent(MemoryStore(), key=lambda order, *, times: f"{order}/{times}", metrics=NO_METRICS)
    def job(order: str, *, times: int) -> tuple[str, ...]:
        """Do the work."""
        return (order,) * times

    assert job("o_1", times=2) == ("o_1", "o_1")
    assert job(order="o_1", times=2) == ["o_1", "o_1"]  # type: ignore[comparison-overlap]
    assert job("o_1", times=1) == ("o_1",)


def test_wrapper_keeps_name_and_signature() -> None:
    """Lambda, Powertools and people inspect them. Celery does not follow `__wrapped__`, as `getfullargspec`."""

    def job(order: str) -> str:
        """Do the work."""
        return order

    guarded = idempotent(MemoryStore(), key=lambda order: order)(job)
    assert (guarded.__name__, guarded.__doc__) == ("job", "Do the work.")
    assert inspect.signature(guarded) == inspect.signature(job)
    assert inspect.getfullargspec(guarded) == inspect.getfullargspec(job)
    assert idempotent(MemoryStore(), key=str, name="len")(len)("four") == 4


def test_method_can_be_guarded() -> None:
    """The key function gets `self` too; a strategy finds the payload after it."""

    class Shop:
        store = MemoryStore()

        def __init__(self, name: str) -> None:
            self.name = name
            self.sold: list[str] = []

        @idempotent(store, key=lambda self, order: f"{self.name}/{order}", metrics=NO_METRICS)
        def sell(self, order: str) -> str:
            self.sold.append(order)
            return f"{self.name} sold {order}"

        @idempotent(store, key=entity_key("order", "id"), metrics=NO_METRICS)
        def deliver(self, event: dict[str, str]) -> str:
            return f"{self.name} delivered {event['id']}"

        @staticmethod
        @idempotent(store, key=str, metrics=NO_METRICS)
        def count(order: str) -> str:
            return f"counted {order}"

    one, other = Shop("one"), Shop("other")
    assert [one.sell("o_1"), one.sell("o_1"), other.sell("o_1")] == ["one sold o_1", "one sold o_1", "other sold o_1"]
    assert (one.sold, other.sold) == (["o_1"], ["o_1"])
    assert [one.deliver({"id": "o_1"}), other.deliver(event={"id": "o_1"})] == ["one delivered o_1"] * 2
    assert Shop.count("o_1") == "counted o_1"


def test_duplicate_strategy_works_for_jobs() -> None:
    """C3: a strategy with a mark works for jobs too."""

    @idempotent(MemoryStore(), key=by_version(entity_key("order", "id")), metrics=NO_METRICS)
    def job(event: dict[str, Any]) -> int:
        return int(event["version"])

    assert [job({"id": 1, "version": version}) for version in (2, 1, 2, 3)] == [2, 2, 2, 3]


@pytest.mark.parametrize("none", ["", None])
@pytest.mark.usefixtures("debug")
def test_call_without_key_runs_without_idempotency(none: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """C2, 004: the store is not called."""
    store, metrics, runs = FailingStore(), RecordedMetrics(), []

    @idempotent(store, key=lambda _: none, name="job", metrics=metrics)
    def job(order: str) -> None:
        runs.append(order)

    job("o_1")
    job("o_1")
    assert runs == ["o_1", "o_1"]
    assert (store.calls, metrics.checks) == ([], [])
    assert {line["message"] for line in logged(caplog, "DEBUG", "INFO")} == {
        "no idempotency key, processing without idempotency"
    }


@pytest.mark.parametrize("key", [7, "k" * 300, " ", "a\nb", b"bytes", ["k"]])
def test_invalid_key_is_rejected_before_the_work(key: Any) -> None:
    """C5: nothing is claimed or run."""
    store, runs = FailingStore(), []

    @idempotent(store, key=lambda _: key, name="job", metrics=NO_METRICS)
    def job(order: str) -> None:
        runs.append(order)

    with pytest.raises(BadRequestError, match="idempotency key"):
        job("o_1")
    assert (store.calls, runs) == ([], [])


def test_error_of_key_function_is_raised() -> None:
    """It is not treated as a call without a key."""
    store = FailingStore()

    @idempotent(store, key=business_key("order", "order_id"), metrics=NO_METRICS)
    def job(_event: dict[str, Any]) -> None: ...

    with pytest.raises(BadRequestError, match="order_id is missing"):
        job({})
    assert store.calls == []


def test_retry_after_failure_runs() -> None:
    """C5: a failed call releases its key."""
    results: list[Any] = [ValueError("first"), "second"]

    @idempotent(MemoryStore(), key=str, name="job", metrics=NO_METRICS)
    def job(_order: str) -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(ValueError, match="first"):
        job("o_1")
    assert job("o_1") == "second"


@pytest.mark.parametrize(("options", "hours"), [({}, 24), ({"ttl": timedelta(hours=1)}, 1)])
def test_key_is_new_after_ttl(options: dict[str, Any], hours: int) -> None:
    """C5, 004 AC3: the TTL is one day by default."""
    time, runs = FakeTime(), []
    store = MemoryStore(clock=time.clock)

    @idempotent(store, key=str, name="job", metrics=NO_METRICS, **options)
    def job(order: str) -> None:
        runs.append(order)

    job("o_1")
    time.advance(timedelta(hours=hours, microseconds=-1))
    job("o_1")
    assert runs == ["o_1"]
    time.advance(timedelta(microseconds=1))
    job("o_1")
    assert runs == ["o_1", "o_1"]


@pytest.mark.parametrize("by_name", [False, True])
def test_claim_expires_one_second_after_lambda(by_name: bool) -> None:
    """A crashed run blocks its key for the remaining time plus one second, not for a day."""
    time = FakeTime()
    store = MemoryStore(clock=time.clock)
    leases: list[timedelta] = []

    @idempotent(store, key=entity_key("order", "id"), name="job", lease=timedelta(hours=5), metrics=NO_METRICS)
    def handler(_event: dict[str, str], context: FakeContext | None = None) -> None:  # noqa: ARG001 - for the wrapper
        check = store.check(Key("job:order:1"), timedelta(1))
        assert isinstance(check, InProgress)
        leases.append(check.free_in)

    context = FakeContext(time, time.now + 30)
    handler({"id": "1"}, context=context) if by_name else handler({"id": "1"}, context)
    time.advance(timedelta(days=2))
    handler({"id": "1"})
    time.advance(timedelta(days=2))
    handler({"id": "1"}, FakeContext(time, time.now - 5))
    assert leases == [timedelta(seconds=31), timedelta(hours=5), timedelta(seconds=1)]


def test_call_in_progress_raises_retryable_error() -> None:
    """Without a context, a run that died blocks its key for 15 minutes, the longest time of a Lambda function."""
    store = MemoryStore()

    @idempotent(store, key=str, name="job", metrics=NO_METRICS)
    def job(order: str) -> str:
        with pytest.raises(RequestInProgressError, match="in progress; retry when it has ended, in 900 s"):
            job(order)
        return order

    assert job("o_1") == "o_1"


def test_default_fail_mode_is_open() -> None:
    """C6: CLOSED can be chosen."""
    done: list[str] = []
    store = FailingStore()
    store.failing = {"check": [RetryableError("down")] * 4}
    idempotent(store, key=str, name="job", metrics=NO_METRICS)(_recording_job(done))("o_1")
    closed = idempotent(store, key=str, fail_mode=FailMode.CLOSED, name="job", metrics=NO_METRICS)(_recording_job(done))
    with pytest.raises(RetryableError, match="down"):
        closed("o_2")
    assert done == ["o_1"]


def _recording_job(done: list[str]) -> Callable[[str], None]:
    def job(order: str) -> None:
        done.append(order)

    return job


def test_metrics_are_flushed_once_per_call() -> None:
    """C11: also for a call that fails."""
    metrics = RecordedMetrics()

    @idempotent(MemoryStore(), key=str, name="job", metrics=metrics)
    def job(order: str) -> None:
        if order == "bad":
            raise ValueError(order)

    job("o_1")
    job("o_1")
    with pytest.raises(ValueError, match="bad"):
        job("bad")
    assert metrics.checks == [("job", "new"), ("job", "duplicate"), ("job", "new")]
    assert metrics.flushes == 3


def test_default_metrics_are_written_for_cloudwatch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: in a Lambda function, a call writes one line, and one more for its result."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    idempotent(MemoryStore(), key=str, name="job")(_recording_job([]))("o_1")
    call, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (call["job"], call["idempotency_duplicate_rate"]) == ("job", [0.0])
    assert (total["job"], total["result"], total["idempotency_check_total"]) == ("job", "new", [1.0])


def test_default_metrics_elsewhere_are_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C16: nothing reads the output of a plain worker as metrics."""
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    idempotent(MemoryStore(), key=str, name="job")(_recording_job([]))("o_1")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("wiring", "problem"),
    [
        ({"store": None}, "the store must be a Store, not None"),
        ({"store": MemoryStore}, "the store must be a Store, not the class MemoryStore"),
        ({"store": "postgresql://user:password@host"}, "the store must be a Store, not a str"),
        ({"key": None}, "key must be a function, not None"),
        ({"key": "order_id"}, "key must be a function"),
        ({"ttl": None}, "ttl must be a positive timedelta"),
        ({"ttl": timedelta(0)}, "ttl must be a positive timedelta"),
        ({"ttl": 3600}, "ttl must be a positive timedelta"),
        ({"lease": timedelta(seconds=-1)}, "lease must be a positive timedelta"),
        ({"lease": None}, "lease must be a positive timedelta"),
        ({"fail_mode": "open"}, "fail_mode must be"),
        ({"metrics": object()}, "metrics must be IdempotencyMetrics"),
        ({"name": "order create"}, "name must be"),
        ({"name": ":" * 34}, "a colon or a percent sign counts as three"),
        ({"name": ""}, "name must not be empty"),
        ({"name": 7}, "name must be"),
        ({"name": "n" * 101}, "name must be"),
        ({"name": "größe"}, "name must be"),
    ],
)
def test_invalid_argument_raises_config_error(wiring: dict[str, Any], problem: str) -> None:
    """C5, 004: the error is raised before anything is decorated, and contains no password."""
    parts: dict[str, Any] = {"store": MemoryStore(), "key": str} | wiring
    with pytest.raises(ConfigError, match=problem) as raised:
        idempotent(parts.pop("store"), **parts)
    assert "password" not in str(raised.value)


def test_name_can_have_colons() -> None:
    """C30, 004: `order:create` of document 004. Two jobs never share a key, whatever their names and keys contain."""
    store, runs = MemoryStore(), list[str]()
    for name, key in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("order:create", "c")):
        job = idempotent(store, key=str, name=name, metrics=NO_METRICS)(runs.append)
        job(key)
        job(key)
    assert runs == ["b:c", "c", "c", "c"]
    assert store.get_result(Key("order%3Acreate:c")) is not None


def test_config_error_lists_every_problem() -> None:
    """C5: one error names every invalid argument."""
    with pytest.raises(ConfigError) as raised:
        idempotent(None, key=None, ttl=None, lease=None, fail_mode="x")  # type: ignore[call-overload]
    assert len(raised.value.problems) == 5


async def _coroutine(_: str) -> None: ...


def _generator(_: str) -> Iterator[None]:
    yield


async def _asynchronous_generator(_: str) -> AsyncIterator[None]:
    yield


class _AsyncCallable:
    async def __call__(self, _: str) -> None: ...


@pytest.mark.parametrize(
    "function",
    [None, "job", _coroutine, _generator, _asynchronous_generator, functools.partial(_coroutine), _AsyncCallable()],
)
def test_only_plain_function_can_be_guarded(function: Any) -> None:
    """The call of a coroutine function returns before the work is done, and the coroutine would be stored."""
    with pytest.raises(ConfigError, match=r"the decorated object must (be a|not be a)|an asynchronous store"):
        idempotent(MemoryStore(), key=str, name="job")(function)


class _Callable:
    def __call__(self, order: str) -> str:
        return order


@pytest.mark.parametrize("function", [lambda order: order, functools.partial(max, "a"), _Callable()])
def test_function_without_unique_name_requires_name(function: Any) -> None:
    """Two lambda expressions would share their keys."""
    with pytest.raises(ConfigError, match="name must not be empty"):
        idempotent(MemoryStore(), key=str)(function)
    assert idempotent(MemoryStore(), key=str, name="job", metrics=NO_METRICS)(function)("o_1") == "o_1"


def named_job(order: str) -> str:
    """Do nothing, at the top level of a module."""
    return order


@pytest.mark.parametrize(
    ("lambda_name", "name"),
    [(None, f"{__name__}.named_job"), ("Charge", f"Charge.{__name__}.named_job")],
)
def test_default_name_contains_lambda_function_name(
    lambda_name: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Lambda functions whose handlers are both `app.handler` do not share keys."""
    if lambda_name is not None:
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", lambda_name)
    assert _default_name(named_job) == name


def test_long_default_name_is_shortened_and_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that works locally also works in Lambda, where it is longer."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f" * 64)

    class Shop:
        class ClassWithAVeryLongNameForThisTest1234567890:
            def sell(self) -> None: ...

            def sells(self) -> None: ...

    cls = Shop.ClassWithAVeryLongNameForThisTest1234567890
    one, other = _default_name(cls.sell), _default_name(cls.sells)
    assert len(one) == len(other) == 100
    assert one != other
    assert one == _default_name(cls.sell)


def _default_name(function: Callable[..., Any]) -> str:
    metrics = RecordedMetrics()
    idempotent(MemoryStore(), key=lambda *_: "k", metrics=metrics)(function)(None)
    ((name, _),) = metrics.checks
    return name


def test_functions_with_same_name_share_keys() -> None:
    """For a function that is renamed, moved or deployed twice."""
    store = MemoryStore()
    one = idempotent(store, key=str, name="job", metrics=NO_METRICS)(lambda _: "one")
    other = idempotent(store, key=str, name="job", metrics=NO_METRICS)(lambda _: "other")
    assert [one("o_1"), other("o_1")] == ["one", "one"]
