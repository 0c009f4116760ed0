"""Log messages of the product: those that the code logs, and those that docs/log-messages.md lists."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
}
_SOURCES = ("layers/core/python/grantwire", "layers/idempotency/src/grantwire_idempotency", "functions")
_NOT_FIELDS = {"exc_info", "extra", "stack_info", "stacklevel"}
_CELL_SEPARATOR = re.compile(r"(?<!\\)\|")
_CODE_SPAN = re.compile(r"`([^`]+)`")


@dataclass
class Message:
    """The levels and fields that one log message can have."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def collect_from_code() -> dict[str, Message]:
    """Return every message that the layers and functions log, found in their syntax trees.

    Fields are included as far as they are written out in the call: the contents of `**fields` are not.
    """
    messages: dict[str, Message] = {}
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text, level, fields in find_log_calls(ast.parse(path.read_text())):
                message = messages.setdefault(text, Message())
                message.levels.add(level)
                message.fields |= fields
    return messages


def collect_from_page() -> dict[str, Message]:
    """Return the rows of docs/log-messages.md.

    Raises AssertionError if a message is listed twice or has no meaning or action.
    """
    page = (ROOT / "docs" / "log-messages.md").read_text()
    rows: dict[str, Message] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in _CELL_SEPARATOR.split(line)[1:-1]]
        if not cells or not _CODE_SPAN.fullmatch(cells[0]):
            continue
        text, level, fields, meaning, action = cells
        name = text.strip("`")
        assert name not in rows, f"{name!r} is listed twice"
        assert meaning and action, f"{name!r} needs a meaning and an action"  # noqa: PT018
        rows[name] = Message(set(re.findall(r"[A-Z]+", level)), set(_CODE_SPAN.findall(fields)))
    return rows


def find_log_calls(tree: ast.Module) -> Iterator[tuple[str, str, set[str]]]:
    """Yield text, level and fields of each call of a logger whose text is a literal.

    Understands `logger.error(…)`, `(logger.error if final else logger.warning)(…)`, a variable that holds a method of
    the logger, and `logger.log(level, …)`.
    """
    aliases = _find_aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for level, text in _levels_and_texts(node, aliases):
                yield text, level, _fields(node)


def _levels_and_texts(call: ast.Call, aliases: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield each level and text that a call can have; two conditions in one call are the same condition."""
    arguments = call.args
    if isinstance(call.func, ast.Name) and call.func.id in aliases:
        levels = aliases[call.func.id]
    elif _is_logger_method(call.func, {"log"}) and arguments:
        levels = [option.attr for option in _options(arguments[0]) if isinstance(option, ast.Attribute)]
        arguments = arguments[1:]
    else:
        levels = _method_levels(call.func)
    texts = [
        option.value
        for argument in arguments[:1]
        for option in _options(argument)
        if isinstance(option, ast.Constant) and isinstance(option.value, str)
    ]
    if len(levels) == len(texts):
        yield from zip(levels, texts, strict=True)
    else:
        yield from product(levels, texts)


def _find_aliases(tree: ast.Module) -> dict[str, list[str]]:
    """Return the levels of each variable that holds a method of the logger."""
    return {
        target.id: levels
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and (levels := _method_levels(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _method_levels(function: ast.expr) -> list[str]:
    """Return the level of a method of the logger; both levels where a condition chooses the method."""
    return [
        _LEVELS[option.attr]
        for option in _options(function)
        if isinstance(option, ast.Attribute) and _is_logger_method(option, set(_LEVELS))
    ]


def _options(expression: ast.expr) -> list[ast.expr]:
    """Return the branches of `a if condition else b`, or the expression itself."""
    return [expression.body, expression.orelse] if isinstance(expression, ast.IfExp) else [expression]


def _is_logger_method(function: ast.expr, methods: set[str]) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in methods
        and isinstance(function.value, ast.Name)
        and function.value.id in {"logger", "_logger"}
    )


def _fields(call: ast.Call) -> set[str]:
    """Return the names of the fields that are written out in a call."""
    names = {keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg not in _NOT_FIELDS}
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            names |= {str(key.value) for key in keyword.value.keys if isinstance(key, ast.Constant)}
    return names
