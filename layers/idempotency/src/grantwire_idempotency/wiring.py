"""Validation of the arguments of jobs and consumers when they are created, and the default name of a job."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from datetime import timedelta
from typing import Any

from grantwire_idempotency.errors import ConfigError
from grantwire_idempotency.fail_mode import FailMode

MAX_NAME_LENGTH = 100
_NAME = re.compile(rf"[!-9;-~]{{1,{MAX_NAME_LENGTH}}}")
_DIGEST_LENGTH = 12

# Whether the rule holds, and the problem to report if it does not.
Rule = tuple[bool, str]


def require(*rules: Rule) -> None:
    """Raise a ConfigError with the problem of every rule that does not hold."""
    problems = [problem for holds, problem in rules if not holds]
    if problems:
        raise ConfigError(problems)


def store_rule(store: object) -> Rule:
    """Require the methods of a Store that the library calls."""
    methods = ("check", "store_result", "store_failure", "get_result")
    return _has_methods(store, *methods), f"the store must be a Store, not {_describe_type(store)}"


def metrics_rule(metrics: object) -> Rule:
    """Require the methods of IdempotencyMetrics; None means the default."""
    is_valid = metrics is None or _has_methods(metrics, "record_check", "record_unguarded_run", "flush")
    return is_valid, f"metrics must be IdempotencyMetrics, not {_describe_type(metrics)}"


def duration_rule(name: str, value: object) -> Rule:
    """Require a positive timedelta."""
    is_positive = isinstance(value, timedelta) and value > timedelta(0)
    return is_positive, f"{name} must be a positive timedelta, such as timedelta(hours=24), not {value!r:.60}"


def fail_mode_rule(value: object) -> Rule:
    """Require a FailMode."""
    return isinstance(value, FailMode), f"fail_mode must be FailMode.OPEN or FailMode.CLOSED, not {value!r:.60}"


def callable_rule(name: str, value: object) -> Rule:
    """Require a callable."""
    return callable(value), f"{name} must be a function, not {_describe_type(value)}"


def function_rule(name: str, value: object) -> Rule:
    """Require a plain function. The call of a coroutine or generator function returns before any work is done."""
    if not callable(value):
        return callable_rule(name, value)
    tests = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    is_deferred = any(test(function) for test in tests for function in (value, type(value).__call__))
    return not is_deferred, f"{name} must be a plain function, neither a coroutine nor a generator"


def job_rules(argument: str, function: object, name: str) -> list[Rule]:
    """Require a plain function and a valid job name; `argument` is the name of the function's argument."""
    rule = function_rule(argument, function)
    return [rule, name_rule(name)] if callable(function) else [rule]


def name_rule(name: object) -> Rule:
    """Require a valid job name. A colon separates the name from the key, so a name must not contain one."""
    if name == "":
        return False, "name must not be empty; it is required for a lambda expression, a partial or a callable object"
    return (
        isinstance(name, str) and bool(_NAME.fullmatch(name)),
        f"name must be 1 to {MAX_NAME_LENGTH} printable ASCII characters without spaces or colons, not {name!r:.120}",
    )


def job_name(function: Any, name: str | None) -> str:
    """Return the given name, or the default name of the job, which is part of its stored keys.

    The default consists of the Lambda function's name, the module and the qualified name. The first part separates the
    keys of two Lambda functions whose handlers are both `app.handler`. Returns "" for a lambda expression, a partial or
    a callable object, which have no unique name.
    """
    if name is not None:
        return name
    qualified_name = getattr(function, "__qualname__", "")
    if not qualified_name or "<lambda>" in qualified_name:
        return ""
    lambda_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")  # noqa: TID251 - set by Lambda
    full_name = ".".join(filter(None, (lambda_name, function.__module__, qualified_name)))
    if len(full_name) <= MAX_NAME_LENGTH:
        return full_name
    digest = hashlib.sha256(full_name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{full_name[: MAX_NAME_LENGTH - _DIGEST_LENGTH - 1]}~{digest}"


def _has_methods(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, name, None)) for name in methods)


def _describe_type(value: object) -> str:
    """Return the type of a value. The value itself could be a password."""
    return "None" if value is None else f"a {type(value).__name__}"
