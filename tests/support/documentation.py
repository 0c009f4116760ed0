"""Copies code examples from tests into the documentation: `python -m tests.support.documentation`.

An example is the code between the lines `# example NAME` and `# end of example` in a file of
tests/integration/examples. In a page, it follows the line `<!-- example NAME -->`. A program is a whole file of
docs/examples, which runs alone; it follows the line `<!-- program NAME -->`.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = ROOT / "tests" / "integration" / "examples"
_PLACEHOLDER = re.compile(r"(<!-- example (?P<name>\S+) -->\n)(```python\n.*?\n```\n)?", re.DOTALL)
PROGRAMS = ROOT / "docs" / "examples"
_PROGRAM = re.compile(r"(<!-- program (?P<name>\S+) -->\n)(```python\n.*?\n```\n)?", re.DOTALL)
_EXAMPLE = re.compile(r"^ *# example (?P<name>\S+)\n(?P<code>.*?)^ *# end of example\n", re.DOTALL | re.MULTILINE)


def read_examples() -> dict[str, str]:
    """Return the code of every example by its name."""
    examples: dict[str, str] = {}
    for path in sorted(EXAMPLES.glob("test_*.py")):
        for match in _EXAMPLE.finditer(path.read_text()):
            if match["name"] in examples:
                raise ValueError(f"{path.name}: duplicate example name {match['name']}")
            examples[match["name"]] = textwrap.dedent(match["code"]).strip("\n")
    return examples


def list_example_names(page: Path) -> list[str]:
    """Return the names of the examples in a page."""
    return [match["name"] for match in _PLACEHOLDER.finditer(page.read_text())]


def fill_examples(page: Path) -> str:
    """Return the text of the page with the current code of every example."""
    code = read_examples()
    programs = {path.stem: path.read_text().strip("\n") for path in PROGRAMS.glob("*.py")}
    text = _PLACEHOLDER.sub(lambda match: f"{match[1]}```python\n{code[match['name']]}\n```\n", page.read_text())
    return _PROGRAM.sub(lambda match: f"{match[1]}```python\n{programs[match['name']]}\n```\n", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_examples(page))
