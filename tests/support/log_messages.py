"""Finds the log messages of the product's code, and those that the runbook lists."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
}
_SOURCES = ("layers/core/python/grantwire", "layers/idempotency/src/grantwire_idempotency", "functions")
_NOT_FIELDS = {"exc_info", "extra", "stack_info", "stacklevel"}
_CELL = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`([^`]+)`")


@dataclass
class Message:
    """One log message with the levels and fields that it can have."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def in_code() -> dict[str, Message]:
    """Return every message that the layers and functions log, found in their syntax trees."""
    messages: dict[str, Message] = {}
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text, level, fields in _calls(ast.parse(path.read_text())):
                message = messages.setdefault(text, Message())
                message.levels.add(level)
                message.fields |= fields
    return messages


def in_runbook() -> dict[str, Message]:
    """Return the rows of the runbook's section "Log messages": message, level, fields, meaning and action."""
    page = (ROOT / "docs" / "runbook.md").read_text()
    section = page.partition("\n## Log messages\n")[2].partition("\n## ")[0]
    rows: dict[str, Message] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
        if not cells or not _CODE.fullmatch(cells[0]):
            continue
        text, level, fields, meaning, action = cells
        name = text.strip("`")
        assert name not in rows, f"{name!r} is listed twice"
        assert meaning and action, f"{name!r} needs a meaning and an action"  # noqa: PT018
        rows[name] = Message(set(re.findall(r"[A-Z]+", level)), set(_CODE.findall(fields)))
    return rows


def _calls(tree: ast.Module) -> Iterator[tuple[str, str, set[str]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        for function, text in _choices(node.func, node.args[0]):
            if _is_logger(function):
                yield text, _LEVELS[function.attr], _fields(node)


def _choices(function: ast.expr, text: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Return the function and the text of a call; both of each where `a if final else b` chooses."""
    functions = [function.body, function.orelse] if isinstance(function, ast.IfExp) else [function]
    texts = [text.body, text.orelse] if isinstance(text, ast.IfExp) else [text]
    for chosen, literal in zip(functions * (len(texts) // len(functions) or 1), texts, strict=False):
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            yield chosen, literal.value


def _is_logger(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _LEVELS
        and isinstance(function.value, ast.Name)
        and function.value.id in {"logger", "_logger"}
    )


def _fields(call: ast.Call) -> set[str]:
    """Return the names of the call's fields, as far as they are written out in the call."""
    names = {keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg not in _NOT_FIELDS}
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            names |= {key.value for key in keyword.value.keys if isinstance(key, ast.Constant)}
    return names
