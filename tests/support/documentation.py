"""Copies programs and files into the documentation: `python -m tests.support.documentation`.

In a page, the code of an example follows the line `<!-- program NAME -->`, and an SQL file the line
`<!-- sql PATH -->`, with its path in the checkout.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from grantwire_cli.costs import MODES, PRICES_OF, Load, Prices, monthly
from tests.support.paths import LIBRARY_HOME, ROOT
from tests.support.programs import list_programs

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY_PAGES = (LIBRARY_HOME / "README.md", *sorted((LIBRARY_HOME / "docs").glob("*.md")))
PAGES = sorted({*(ROOT / "docs").glob("*.md"), *LIBRARY_PAGES})
_PLACEHOLDER = re.compile(r"(<!-- program (?P<name>\S+) -->\n)(```python\n.*?\n```\n)?", re.DOTALL)
_SQL_PLACEHOLDER = re.compile(r"(<!-- sql (?P<path>\S+) -->\n)(```sql\n.*?\n```\n)?", re.DOTALL)
_COSTS = re.compile(r"(<!-- costs -->\n)(?:Dollars.*\n\n(?:\|.*\n)+)?")
_RATES = (0, 1, 100, 1_000)


def list_shown_programs(page: Path) -> list[str]:
    """Return the names of the programs in a page."""
    return [match["name"] for match in _PLACEHOLDER.finditer(page.read_text())]


def fill_programs(page: Path) -> str:
    """Return the text of the page with the current code of every program and every SQL file."""
    code = {program.name: program.shown for program in list_programs()}
    text = _PLACEHOLDER.sub(lambda match: f"{match[1]}```python\n{code[match['name']]}\n```\n", page.read_text())
    text = _COSTS.sub(lambda match: f"{match[1]}{_cost_table()}\n", text)
    return _SQL_PLACEHOLDER.sub(lambda match: f"{match[1]}```sql\n{_read(match['path'])}\n```\n", text)


def _cost_table() -> str:
    """Return the costs of a month for several rates and both modes, as a table of dollars."""
    columns = [(rate, mode) for rate in _RATES for mode in MODES]
    found = [monthly(Load(changes_per_second=rate, mode=mode), Prices()) for rate, mode in columns]
    lines = [
        f"Dollars a month, with the list prices of us-east-1 of {PRICES_OF}, x86_64 and 512 MB:\n",
        "| changes a second | " + " | ".join(f"{rate:,}, {mode}" for rate, mode in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
        *(f"| {item} | " + " | ".join(f"{one.items[item]:,.2f}" for one in found) + " |" for item in found[0].items),
        "| **total** | " + " | ".join(f"**{one.total:,.2f}**" for one in found) + " |",
        "| billed seconds of workers, million | "
        + " | ".join(f"{one.worker_seconds / 1e6:.2f}" for one in found)
        + " |",
    ]
    return "\n".join(lines)


def _read(path: str) -> str:
    return (ROOT / path).read_text().rstrip()


def remove_programs(page: Path) -> str:
    """Return the text of the page without its programs."""
    return _PLACEHOLDER.sub("", page.read_text())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_programs(page))
