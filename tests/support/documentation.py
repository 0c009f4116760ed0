"""Copies programs and files into the documentation: `python -m tests.support.documentation`.

In a page, the code of an example follows the line `<!-- program NAME -->`, and an SQL file the line
`<!-- sql PATH -->`, with its path in the checkout.
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
_SQL_PLACEHOLDER = re.compile(r"(<!-- sql (?P<path>\S+) -->\n)(```sql\n.*?\n```\n)?", re.DOTALL)


def list_shown_programs(page: Path) -> list[str]:
    """Return the names of the programs in a page."""
    return [match["name"] for match in _PLACEHOLDER.finditer(page.read_text())]


def fill_programs(page: Path) -> str:
    """Return the text of the page with the current code of every program and every SQL file."""
    code = {program.name: program.shown for program in list_programs()}
    text = _PLACEHOLDER.sub(lambda match: f"{match[1]}```python\n{code[match['name']]}\n```\n", page.read_text())
    return _SQL_PLACEHOLDER.sub(lambda match: f"{match[1]}```sql\n{_read(match['path'])}\n```\n", text)


def _read(path: str) -> str:
    return (ROOT / path).read_text().rstrip()


def remove_programs(page: Path) -> str:
    """Return the text of the page without its programs."""
    return _PLACEHOLDER.sub("", page.read_text())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_programs(page))
