"""Command lines in the documents, and in the advice of the status, are accepted by the command."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from grantwire.operations.advice import ADVICE
from grantwire_cli.app import build
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUP: Any = typer.main.get_command(build())
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`grantwire ([^`]+)`")
_ADVISED = re.compile(r"grantwire ((?:[a-z-]+ )*[a-z-]+(?: (?:--[\w-]+|\d+d|[A-Z]{2,}\b|'[^']*'))*)")


def lines(page: Path) -> Iterator[str]:
    """Yield each command line of a page, in a block or in the text, without `grantwire`."""
    text = page.read_text()
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("grantwire "):
                yield re.split(r" +#| \||&&|>|<", line.removeprefix("grantwire "))[0]
    for span in _SPAN.findall(re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield re.split(r" \||&&|>|<", " ".join(span.split()))[0]


def problem(line: str) -> str | None:
    """Return what the command would refuse: a name that it does not have, or an option."""
    try:
        words = shlex.split(line)
    except ValueError:
        return f"{line}: not closed"
    command = GROUP
    path: list[str] = []
    for word in words:
        if word in getattr(command, "commands", {}):
            command, path = command.commands[word], [*path, word]
    if not path:
        return None if words[0].startswith(("--", "…")) else f"{line}: no such command"
    options = {name for parameter in (*GROUP.params, *command.params) for name in parameter.opts}
    options |= {name for parameter in command.params for name in parameter.secondary_opts}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"{line}: {unknown}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_of_a_page_exist(page: Path) -> None:
    """T3: an operator can copy them; a verb or an option that was renamed is found here."""
    assert [found for line in lines(page) if (found := problem(line))] == []


def test_advice_names_commands_that_exist() -> None:
    """W4: the status says what to type."""
    advised = [line for advice in ADVICE.values() for line in _ADVISED.findall(advice.to_do)]
    assert len(advised) > 10
    assert [found for line in advised if (found := problem(line))] == []


@pytest.mark.parametrize("line", ["dead-letters redrive --kid outbox", "status --whatch", "ded-letters list"])
def test_wrong_line_is_a_problem(line: str) -> None:
    """The comparison finds a misspelt option, and a misspelt name."""
    assert problem(line)
