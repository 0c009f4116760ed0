"""Examples in the documents are parts of test files: `python -m tests.support.documentation` copies them in.

In a page, `<!-- example NAME -->` is followed by a block of code, which is what one of the files in
tests/integration/examples has between the lines `# example NAME` and `# end of example`.
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
_PLACE = re.compile(r"(<!-- example (?P<name>\S+) -->\n)(```python\n.*?\n```\n)?", re.DOTALL)
_EXAMPLE = re.compile(r"^ *# example (?P<name>\S+)\n(?P<code>.*?)^ *# end of example\n", re.DOTALL | re.MULTILINE)


def examples() -> dict[str, str]:
    """Every example by its name."""
    found: dict[str, str] = {}
    for path in sorted(EXAMPLES.glob("test_*.py")):
        for match in _EXAMPLE.finditer(path.read_text()):
            if match["name"] in found:
                raise ValueError(f"{path.name}: there are two examples with the name {match['name']}")
            found[match["name"]] = textwrap.dedent(match["code"]).strip("\n")
    return found


def shown(page: Path) -> list[str]:
    """The names of the examples that a page has."""
    return [match["name"] for match in _PLACE.finditer(page.read_text())]


def filled(page: Path) -> str:
    """The page with every example as it is now in its file."""
    code = examples()
    return _PLACE.sub(lambda match: f"{match[1]}```python\n{code[match['name']]}\n```\n", page.read_text())


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(filled(each))
