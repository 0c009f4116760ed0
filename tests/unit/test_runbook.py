"""The runbook quotes error texts that exist, and links between pages lead somewhere."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from grantwire.operations.advice import ADVICE
from tests.support.paths import LAYER, LIBRARY, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUNBOOK = ROOT / "docs" / "runbook.md"
PAGES = sorted(page for pattern in ("*.md", "docs/**/*.md", "layers/**/*.md") for page in ROOT.glob(pattern))

_CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# The first header cell of a table whose first column quotes texts of the code.
_QUOTING_TABLE = "| error text |"


def quoted_error_texts() -> Iterator[str]:
    """Yield each quoted text in the first column of the runbook's tables of error texts."""
    is_quoting = False
    for line in RUNBOOK.read_text().splitlines():
        if not line.startswith("|"):
            is_quoting = False
        elif line.startswith(_QUOTING_TABLE):
            is_quoting = True
        elif is_quoting:
            yield from _CODE_SPAN.findall(line.split("|")[1])


def texts_in_code() -> str:
    """Return every string of the layers' code, and their SQL functions, as one text."""
    trees = [ast.parse(path.read_text()) for folder in (LAYER, LIBRARY) for path in folder.rglob("*.py")]
    strings = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    folders = (LIBRARY, ROOT / "infra" / "sql")
    return "\n".join([*strings, *(path.read_text() for folder in folders for path in folder.rglob("*.sql"))])


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = _HEADING.findall(_CODE_BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_quoted_error_texts_are_in_the_code() -> None:
    """An operator who compares an error with the runbook finds the same words."""
    code = texts_in_code()
    quoted = list(quoted_error_texts())
    assert len(quoted) > 30
    assert [text for text in quoted if text not in code] == []


def test_every_problem_of_the_status_has_a_section() -> None:
    """W4: in the first table of the runbook; the section names the problem, so that a search for it finds both."""
    text = RUNBOOK.read_text()
    sections = {one.partition("\n")[0]: one for one in re.split(r"^## ", text, flags=re.MULTILINE)}
    rows = re.findall(
        r"^\| (`[A-Z_]+`[^|]*) \| \[([^\]]+)\]\(#", text.partition("## Find your symptom")[0], re.MULTILINE
    )
    found = {code: title for codes, title in rows for code in re.findall(r"`([A-Z_]+)`", codes)}
    assert ADVICE.keys() <= found.keys()
    named_after = {"EVENTS_TOO_OLD": "EventsTooOld"}
    assert [code for code, title in found.items() if code not in sections[title] and code not in named_after] == []


def test_no_section_of_the_runbook_begins_with_sql() -> None:
    """T7: the console and the command come first; an operator without credentials of the database gets that far."""
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    with_sql = {
        section.split("\n", 1)[0]: section.partition("```sql")[0] for section in sections if "```sql" in section
    }
    assert len(with_sql) > 15
    assert [title for title, before in with_sql.items() if "grantwire " not in before] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """No page refers to a file or a heading that was renamed."""
    broken = []
    for link in _LINK.findall(_CODE_BLOCK.sub("", page.read_text())):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []
