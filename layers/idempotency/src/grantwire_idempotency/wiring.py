"""What is checked when a job or a consumer is put together, before it ever runs; and what it is called."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from datetime import timedelta
from typing import Any

from grantwire_idempotency.errors import ConfigError
from grantwire_idempotency.fail_mode import FailMode

_LONGEST_NAME = 100
_NAME = re.compile(rf"[!-9;-~]{{1,{_LONGEST_NAME}}}")
_DIGEST = 12

# Whether it holds, and what is wrong if it does not.
Rule = tuple[bool, str]


def require(*rules: Rule) -> None:
    """Every rule holds, or one ConfigError names all that do not."""
    problems = [problem for holds, problem in rules if not holds]
    if problems:
        raise ConfigError(problems)


def store_rule(store: object) -> Rule:
    """Something that has what the library calls."""
    methods = ("check", "store_result", "store_failure", "get_result")
    return _has(store, *methods), f"the store must be a Store, not {_kind(store)}"


def metrics_rule(metrics: object) -> Rule:
    """None stands for the default."""
    complete = metrics is None or _has(metrics, "checked", "unguarded", "flush")
    return complete, f"metrics must be IdempotencyMetrics, not {_kind(metrics)}"


def length_rule(name: str, value: object) -> Rule:
    """A length of time."""
    positive = isinstance(value, timedelta) and value > timedelta(0)
    return positive, f"{name} must be a positive timedelta, such as timedelta(hours=24), not {value!r:.60}"


def fail_mode_rule(value: object) -> Rule:
    """One of the two."""
    return isinstance(value, FailMode), f"fail_mode must be FailMode.OPEN or FailMode.CLOSED, not {value!r:.60}"


def callable_rule(name: str, value: object) -> Rule:
    """Something to call."""
    return callable(value), f"{name} must be a function, not {_kind(value)}"


def work_rule(name: str, value: object) -> Rule:
    """A function that has done its work when it returns; a coroutine or a generator would not even have begun."""
    if not callable(value):
        return callable_rule(name, value)
    tests = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    later = any(test(one) for test in tests for one in (value, type(value).__call__))
    return not later, f"{name} must be a plain function, neither a coroutine nor a generator"


def job_rules(what: str, function: object, name: str) -> list[Rule]:
    """The function that does the work, and the name under which its keys are kept."""
    return [work_rule(what, function), name_rule(name)] if callable(function) else [work_rule(what, function)]


def name_rule(name: object) -> Rule:
    """No colon, because that ends the name in the store's keys: so no two jobs can ever share a key."""
    if name == "":
        return False, "name must be given: the function has none that is its own"
    return (
        isinstance(name, str) and bool(_NAME.fullmatch(name)),
        f"name must be 1 to {_LONGEST_NAME} printable ASCII characters without spaces and colons, not {name!r:.120}",
    )


def name_of(function: Any, name: str | None) -> str:
    """The name under which keys are kept: the given one, else one made of where the function lives.

    That is its module and qualified name, after the name of the Lambda function if there is one: many a handler is
    `app.handler`, and two of them must not take each other's keys. It stays the same as long as none of these is
    renamed. "" for what shares its name with others: a lambda expression, a partial, an object that can be called.
    """
    if name is not None:
        return name
    own = getattr(function, "__qualname__", "")
    if not own or "<lambda>" in own:
        return ""
    lambda_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")  # noqa: TID251 - when a function is wrapped, for any user
    full = ".".join(filter(None, (lambda_name, function.__module__, own)))
    if len(full) <= _LONGEST_NAME:
        return full
    return f"{full[: _LONGEST_NAME - _DIGEST - 1]}~{hashlib.sha256(full.encode()).hexdigest()[:_DIGEST]}"


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, name, None)) for name in methods)


def _kind(value: object) -> str:
    """What it is, without what is in it: that may be a password."""
    return "None" if value is None else f"a {type(value).__name__}"
