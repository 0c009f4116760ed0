"""Check of the list of settings that a deployment gets, with the code of the functions."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from grantwire_cli.checks.findings import Finding, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_settings(value: str) -> Iterator[Finding]:
    """Check names and values as each function does at its start; the layer must be importable.

    Rules that compare a value with another one are left to the functions.
    """
    from grantwire.settings import parse_list  # noqa: PLC0415  # importable only here

    try:
        listed = parse_list(value)
    except ValueError as error:
        yield problem("settings", f"Settings {error}", "correct the parameter Settings; see docs/settings.md")
        return
    parsers = dict(_parsers())
    wrong = False
    for name, text in listed.items():
        try:
            parsers[name](text)
        except ValueError as error:
            wrong = True
            yield problem("settings", f"{name} {error}", "correct the parameter Settings; see docs/settings.md")
    if not wrong:
        yield ok("settings", f"the functions accept {', '.join(listed) or 'the empty list'}")


def _parsers() -> Iterator[tuple[str, Any]]:
    """Yield each variable of the product's settings with its parser."""
    import grantwire  # noqa: PLC0415  # importable only here
    from grantwire.settings import variables  # noqa: PLC0415

    for found in pkgutil.walk_packages(grantwire.__path__, "grantwire."):
        for declared in vars(importlib.import_module(found.name)).values():
            if isinstance(declared, type) and dataclasses.is_dataclass(declared) and _has_variables(declared):
                yield from ((variable.name, variable.parse) for variable in variables(declared))


def _has_variables(declared: Any) -> bool:
    return all(item.metadata.keys() & {"variable", "group"} for item in dataclasses.fields(declared))
