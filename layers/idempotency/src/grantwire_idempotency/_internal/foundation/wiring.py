"""Validation of the arguments of jobs and consumers when they are created, and the default name of a job."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from datetime import timedelta
from typing import Any

from grantwire_idempotency._internal.foundation.escaping import escape
from grantwire_idempotency._internal.foundation.fail_mode import FailMode
from grantwire_idempotency.errors import ConfigError

MAX_NAME_LENGTH = 100
_NAME = re.compile(rf"[!-~]{{1,{MAX_NAME_LENGTH}}}")
_DIGEST_LENGTH = 12
# A return annotation of an awaitable.
_AWAITABLE = re.compile(r"(\w+\.)*(Awaitable|Coroutine|Future|Task)\b")

# Whether the rule holds, and the problem to report if it does not.
Rule = tuple[bool, str]


def require(*rules: Rule) -> None:
    """Raise a ConfigError with the problem of every rule that does not hold."""
    problems = [problem for holds, problem in rules if not holds]
    if problems:
        raise ConfigError(problems)


def store_rule(store: object) -> Rule:
    """Require the methods of a Store, or of an AsyncStore, that the library calls."""
    methods = ("check", "store_result", "store_failure", "extend", "get_result")
    is_object = not inspect.isclass(store)  # the class has the methods too, but no keys
    return is_object and _has_methods(store, *methods), f"the store must be a Store, not {_describe_type(store)}"


def is_async_store(store: object) -> bool:
    """Return whether the methods of a store are coroutine functions."""
    return inspect.iscoroutinefunction(getattr(store, "check", None))


def sync_store_rule(store: object) -> Rule:
    """Require a Store that is not asynchronous: a coroutine instead of a claim would pass for one."""
    holds, problem = store_rule(store)
    is_sync = not is_async_store(store)
    return holds and is_sync, problem if not holds else "the store must not be asynchronous here"


def async_store_rule(store: object) -> Rule:
    """Require an AsyncStore."""
    holds, problem = store_rule(store)
    return (
        holds and is_async_store(store),
        problem if not holds else "coroutines need an asynchronous store, such as AsyncRedisStore",
    )


def serializer_rule(serializer: object) -> Rule:
    """Require the methods of a Serializer. Those of modules such as `json` also need a file."""
    is_valid = all(_takes_one_argument(getattr(serializer, name, None)) for name in ("dump", "load"))
    return is_valid, (
        "serializer must be an object with dump(value) -> str and load(text), such as JsonSerializer(),"
        f" not {_describe_type(serializer)}"
    )


def logger_rule(logger: object) -> Rule:
    """Require the methods of a logger; None means the default."""
    is_valid = logger is None or _has_methods(logger, "debug", "info", "warning", "error", "exception", "log")
    return is_valid, f"logger must be a logger, not {_describe_type(logger)}"


def metrics_rule(metrics: object) -> Rule:
    """Require the methods of IdempotencyMetrics; None means the default."""
    is_valid = metrics is None or _has_methods(metrics, "record_check", "record_unguarded_run", "flush")
    return is_valid, f"metrics must be IdempotencyMetrics, not {_describe_type(metrics)}"


def duration_rule(name: str, value: object) -> Rule:
    """Require a positive timedelta."""
    is_positive = isinstance(value, timedelta) and value > timedelta(0)
    return is_positive, f"{name} must be a positive timedelta, such as timedelta(hours=24), not {value!r:.60}"


def count_rule(name: str, value: object) -> Rule:
    """Require an integer of at least 1."""
    return type(value) is int and value >= 1, f"{name} must be an integer of at least 1, not {value!r:.80}"


def fail_mode_rule(value: object) -> Rule:
    """Require a FailMode."""
    return isinstance(value, FailMode), f"fail_mode must be FailMode.OPEN or FailMode.CLOSED, not {value!r:.60}"


def callable_rule(name: str, value: object) -> Rule:
    """Require a callable."""
    return callable(value), f"{name} must be a function, not {_describe_type(value)}"


def is_coroutine_function(value: object) -> bool:
    """Return whether a call of the value returns a coroutine, as far as its definition says so."""
    if inspect.iscoroutinefunction(value):
        return True
    return not inspect.isclass(value) and inspect.iscoroutinefunction(type(value).__call__)


def function_rule(name: str, value: object, *, is_async: bool = False) -> Rule:
    """Require a plain function, or a coroutine function. The call of a generator function does no work at all."""
    if not callable(value):
        return callable_rule(name, value)
    if any(_has_code(value, test) for test in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        return False, f"{name} must not be a generator function"
    if is_async:
        return is_coroutine_function(value), f"{name} must be a coroutine function"
    returns_coroutine = is_coroutine_function(value) or _returns_coroutine(value)
    return (
        not returns_coroutine,
        f"{name} must be a plain function, neither a coroutine nor a function that returns one",
    )


def job_rules(argument: str, function: object, name: str, *, is_async: bool = False) -> list[Rule]:
    """Require a function and a valid job name; `argument` is the name of the function's argument."""
    rule = function_rule(argument, function, is_async=is_async)
    return [rule, name_rule(name)] if callable(function) else [rule]


def name_rule(name: object) -> Rule:
    """Require a valid job name, which is the first part of its keys."""
    if name == "":
        return False, (
            "name must not be empty; it is required for a lambda expression, a partial, a callable object and a"
            " closure, because two of them could not be told apart"
        )
    problem = (
        f"name must be 1 to {MAX_NAME_LENGTH} printable ASCII characters without spaces (a colon or a percent sign"
        f" counts as three), not {name!r:.120}"
    )
    return isinstance(name, str) and bool(_NAME.fullmatch(escape(name))), problem


def job_name(function: Any, name: str | None) -> str:
    """Return the given name, or the default name of the job, which is part of its stored keys.

    The default consists of the Lambda function's name, the module and the qualified name. The first part separates the
    keys of two Lambda functions whose handlers are both `app.handler`. Returns "" for a lambda expression, a partial, a
    callable object or a closure, which have no unique name.
    """
    if name is not None:
        return name
    qualified_name = getattr(function, "__qualname__", "")
    if not qualified_name or "<lambda>" in qualified_name or _is_closure(function):
        return ""
    lambda_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")  # noqa: TID251 - set by Lambda
    full_name = ".".join(filter(None, (lambda_name, function.__module__, qualified_name)))
    if len(full_name) <= MAX_NAME_LENGTH:
        return full_name
    digest = hashlib.sha256(full_name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{full_name[: MAX_NAME_LENGTH - _DIGEST_LENGTH - 1]}~{digest}"


def _is_closure(function: Any) -> bool:
    """Return whether a call of the surrounding function makes it, with values of its own: each call makes another."""
    code = getattr(function, "__code__", None)
    has_values = bool(code and code.co_freevars) or bool(getattr(function, "__defaults__", None))
    return "<locals>" in function.__qualname__ and (has_values or bool(getattr(function, "__kwdefaults__", None)))


def _has_code(value: object, test: Any) -> bool:
    return any(test(function) for function in (value, type(value).__call__))


def _returns_coroutine(value: Any) -> bool:
    """Return whether a function returns a coroutine although it is not a coroutine function itself.

    It wraps a coroutine function with functools.wraps, or its annotation says so.
    """
    inner = inspect.unwrap(value) if callable(value) else value
    if inner is not value and is_coroutine_function(inner):
        return True
    annotation = getattr(value, "__annotations__", {}).get("return", "")
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return bool(_AWAITABLE.match(text))


def _has_methods(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, name, None)) for name in methods)


def _takes_one_argument(function: Any) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True


def _describe_type(value: object) -> str:
    """Return the type of a value. The value itself could be a password."""
    if inspect.ismodule(value) or inspect.isclass(value):
        return f"the {'module' if inspect.ismodule(value) else 'class'} {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"
