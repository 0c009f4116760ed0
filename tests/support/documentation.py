"""Copies the programs of the examples into the documentation: `python -m tests.support.documentation`.

In a page, the code of a program follows the line `<!-- program NAME -->`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.paths import LIBRARY_HOME, ROOT
from tests.support.programs import list_programs

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY_PAGES = (LIBRARY_HOME / "README.md", *sorted((LIBRARY_HOME / "docs").glob("*.md")))
PAGES = sorted({*(ROOT / "docs").glob("*.md"), *LIBRARY_PAGES})
_PLACEHOLDER = re.compile(r"(<!-- program (?P<name>\S+) -->\n)(```python\n.*?\n```\n)?", re.DOTALL)


def list_shown_programs(page: Path) -> list[str]:
    """Return the names of the programs in a page."""
    return [match["name"] for match in _PLACEHOLDER.finditer(page.read_text())]


def fill_programs(page: Path) -> str:
    """Return the text of the page with the current code of every program."""
    code = {program.name: program.shown for program in list_programs()}
    return _PLACEHOLDER.sub(lambda match: f"{match[1]}```python\n{code[match['name']]}\n```\n", page.read_text())


def remove_programs(page: Path) -> str:
    """Return the text of the page without its programs."""
    return _PLACEHOLDER.sub("", page.read_text())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_programs(page))
