"""The table of parameters in the guide is complete, and its defaults are those of the signatures (C16)."""

from __future__ import annotations

import inspect
import random
import re
import time
from datetime import timedelta
from typing import Any

import pytest

import grantwire_idempotency as library
from grantwire_idempotency import GuardSettings, JsonSerializer, RetryPolicy, message_id
from grantwire_idempotency._internal.postgres.runners import NO_DATABASE
from tests.support.paths import LIBRARY_HOME

PAGE = LIBRARY_HOME / "docs" / "guide.md"
# A user passes no arguments to results, protocols and enumerations.
RESULTS = {"AsyncHeldClaim", "Claim", "Duplicate", "HeldClaim", "InProgress", "KeyState", "Lock", "Outcome"}
PROTOCOLS = {"IdempotencyMetrics", "KeyFilter", "LockManager", "Serializer", "Store"}
# A user calls `RequestIdentity.create`.
OTHERS = RESULTS | PROTOCOLS | {"FailMode", "KeyStatus", "RequestIdentity"}
METHODS = (
    "IdempotencyChecker.mark_processing",
    "IdempotentConsumer.process",
    "AsyncIdempotentConsumer.process_batch",
    "InboxGuard.record",
    "PostgresLocks.acquire",
    "TransactionGuard.begin",
    "TransactionGuard.finish",
)
CLASS_METHODS = ("RequestIdentity.create",)


def list_documented() -> dict[tuple[str, str], str]:
    """Return the default of each parameter in the table, by the name of its owner and its own."""
    table = PAGE.read_text().partition("| parameter | of | default | meaning |\n")[2].partition("\n\n")[0]
    documented: dict[tuple[str, str], str] = {}
    for row in table.splitlines()[1:]:
        parameters, owners, default, _ = (cell.strip() for cell in row.strip("|").split(" | "))
        for owner in re.findall(r"`([^`]+)`", owners):
            for parameter in re.findall(r"`([^`]+)`", parameters):
                assert (owner, parameter) not in documented, f"{parameter} of {owner} is listed twice"
                documented[owner, parameter] = default
    return documented


def list_real() -> dict[tuple[str, str], Any]:
    """Return the default of each parameter in the signatures, or `inspect.Parameter.empty`."""
    owners = [
        name
        for name in dir(library)
        if callable(getattr(library, name)) and name not in OTHERS and not name.startswith("Async")
    ]
    real: dict[tuple[str, str], Any] = {}
    for owner in (*owners, *METHODS, *CLASS_METHODS):
        signature = inspect.signature(find(owner))
        for parameter in list(signature.parameters.values())[owner in METHODS :]:
            if owner != "message_id":  # it takes any arguments, as every key strategy does
                real[owner, parameter.name] = parameter.default
    return real


def find(owner: str) -> Any:
    """Return a public name, or a method of one."""
    name, _, method = owner.partition(".")
    value = getattr(library, name)
    return getattr(value, method) if method else value


def describe(default: Any) -> str:
    """Return a default as the table writes it."""
    if default is inspect.Parameter.empty:
        return "required"
    if default in (None, (), "") or default == timedelta(0):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, timedelta):
        return describe_duration(default)
    if isinstance(default, str | int | float):
        return f"{default:,}" if isinstance(default, int) else f"`{default}`"
    return describe_object(default)


def describe_duration(duration: timedelta) -> str:
    """Return a duration in the largest unit that fits."""
    for unit, name in ((timedelta(hours=1), "hours"), (timedelta(minutes=1), "minutes"), (timedelta(seconds=1), "s")):
        if not duration % unit:
            count = duration // unit
            return f"{count // 24} days" if name == "hours" and count > 24 else f"{count} {name}"
    return str(duration)


def describe_object(default: Any) -> str:
    """Return the expression that creates a default."""
    known = {
        "`RetryPolicy()`": default == RetryPolicy(),
        "`GuardSettings()`": default == GuardSettings(),
        "`Backoff`": default == RetryPolicy().backoff,
        "`JsonSerializer()`": isinstance(default, JsonSerializer),
        "`POST`, `PATCH`": default == ("POST", "PATCH"),
        "2xx, 3xx, 4xx": isinstance(default, frozenset) and {200, 399, 404, 499} <= default < set(range(200, 500)),
        "`message_id`": default is message_id,
        "`by_message_id()`": getattr(default, "__qualname__", "") == "by_message_id.<locals>.identify",
        "none": repr(default) == "<factory>" or default is NO_DATABASE,
        "that of the system": default in (time.sleep, time.monotonic, random.random)
        or getattr(default, "__name__", "") == "<lambda>",
    }
    return next(text for text, holds in known.items() if holds)


def test_table_lists_every_parameter_with_its_default() -> None:
    """C16: nothing is missing, and nothing else is listed. An explanation may follow a default after a colon."""
    documented = {parameter: default.partition(": ")[0] for parameter, default in list_documented().items()}
    assert documented == {parameter: describe(default) for parameter, default in list_real().items()}


@pytest.mark.parametrize("name", [name for name in dir(library) if name.startswith("Async")])
def test_asynchronous_parts_have_the_same_parameters(name: str) -> None:
    """C22: the table says so instead of listing them again."""
    ours, others = (
        {parameter.name: describe(parameter.default) for parameter in inspect.signature(part).parameters.values()}
        for part in (getattr(library, name), getattr(library, name.removeprefix("Async")))
    )
    assert ours == others


def test_constants_have_the_documented_values() -> None:
    """C14: the defaults have names."""
    text = PAGE.read_text()
    for name in (name for name in dir(library) if name.startswith("DEFAULT_")):
        value = describe(getattr(library, name))
        assert re.search(rf"`{name}`\W+{re.escape(value.strip('`'))}", text), (name, value)
