"""C30: `argument`, which makes the key or the content of a call from named arguments of the function."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from grantwire_idempotency import (
    AsyncMemoryStore,
    IdempotentConsumer,
    MemoryStore,
    Message,
    NoMetrics,
    argument,
    by_message_id,
    idempotent,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError, KeyConflictError

NO_METRICS = NoMetrics()


def test_argument_is_the_key_however_it_is_passed() -> None:
    """C30: by position, by keyword or by default; the other arguments do not matter."""
    runs: list[tuple[str, int]] = []

    @idempotent(MemoryStore(), key=argument("order_id"), name="job", metrics=NO_METRICS)
    def ship(count: int, order_id: str = "o-0") -> int:
        runs.append((order_id, count))
        return count

    results = [ship(1, "o-1"), ship(2, order_id="o-1"), ship(order_id="o-1", count=3), ship(4), ship(5, "o-0")]
    assert results == [1, 1, 1, 4, 4]
    assert runs == [("o-1", 1), ("o-0", 4)]
    with pytest.raises(TypeError, match="missing a required argument: 'count'"):
        ship(order_id="o-1")  # type: ignore[call-arg]


def test_arguments_of_methods_and_coroutines() -> None:
    """C30: `self` needs no place among the names; keyword-only arguments have names too."""

    class Shop:
        @idempotent(MemoryStore(), key=argument("order"), name="job", metrics=NO_METRICS)
        def sell(self, order: int, *, total: int = 0) -> int:
            return order + total

        @classmethod
        @idempotent(MemoryStore(), key=argument("total"), name="job", metrics=NO_METRICS)
        def count(cls, *, total: int) -> str:
            return f"{cls.__name__} {total}"

        @idempotent(AsyncMemoryStore(), key=argument("order"), name="job", metrics=NO_METRICS)
        async def ship(self, order: uuid.UUID) -> str:
            return f"{order}"

    assert [Shop().sell(1, total=5), Shop().sell(order=1, total=6)] == [6, 6]
    assert [Shop.count(total=1), Shop.count(total=2)] == ["Shop 1", "Shop 2"]
    order = uuid.uuid4()
    assert asyncio.run(Shop().ship(order)) == str(order)


def test_several_arguments_are_told_apart() -> None:
    """C30: whatever their values contain."""
    runs: list[tuple[str, str]] = []

    @idempotent(MemoryStore(), key=argument("shop", "order"), name="job", metrics=NO_METRICS)
    def job(shop: str, order: str) -> None:
        runs.append((shop, order))

    calls = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("c", "a:b"), ("a", "b:c")]
    for shop, order in calls:
        job(shop, order)
    assert runs == calls[:4]


def test_argument_as_content() -> None:
    """C5, C30: any JSON, compared by its value."""

    @idempotent(
        MemoryStore(), key=argument("order"), content=argument("lines", "total"), name="job", metrics=NO_METRICS
    )
    def pay(order: str, lines: list[dict[str, Any]], total: float = 0.5) -> str:
        return f"{order} {lines} {total}"

    first = pay("o-1", [{"sku": 1, "count": 2}])
    assert pay("o-1", lines=[{"count": 2, "sku": 1}], total=0.5) == first
    with pytest.raises(KeyConflictError):
        pay("o-1", [{"sku": 1, "count": 2}], 0.7)


@pytest.mark.parametrize("value", ["", None, True, 1.5, [], Message("m-1")])
def test_value_that_is_no_key_is_refused_by_name(value: Any) -> None:
    """C30: two calls without an order are not the same call."""
    runs: list[Any] = []

    @idempotent(MemoryStore(), key=argument("order"), name="job", metrics=NO_METRICS)
    def job(order: Any) -> None:
        runs.append(order)

    with pytest.raises(BadRequestError, match="order must be a non-empty string, an integer or a UUID"):
        job(value)
    assert runs == []


def test_wrong_name_is_a_config_error_when_decorated() -> None:
    """C30: not when the first order comes."""

    def job(order: str, *, total: int) -> str:
        return f"{order} {total}"

    for options in ({"key": argument("order_id")}, {"key": str, "content": argument("order_id")}):
        with pytest.raises(ConfigError, match=r"job has no argument 'order_id'; its arguments are: order, total"):
            idempotent(MemoryStore(), name="job", **options)(job)
    for names in ((), ("",), (7,)):
        with pytest.raises(ConfigError, match="argument requires at least one name"):
            argument(*names)


def test_argument_has_no_function_elsewhere() -> None:
    """C30: a consumer has messages, and another strategy does not know the function."""
    for wire in (
        lambda: IdempotentConsumer(MemoryStore(), print, NO_METRICS, name="c", identify=argument("message")),
        lambda: by_message_id(argument("order")),
        lambda: argument("order")("o-1"),
    ):
        with pytest.raises(ConfigError, match="must itself be the `key` or the `content` of @idempotent"):
            wire()
