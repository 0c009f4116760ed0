"""The runbook is short and complete, its reference quotes texts that exist, and links lead somewhere."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from grantwire.operations.advice import ADVICE
from infra.local.deployment.template import load_template
from tests.support.paths import LAYER, LIBRARY, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUNBOOK = ROOT / "docs" / "runbook.md"
REFERENCE = ROOT / "docs" / "runbook-reference.md"
PAGES = sorted(page for pattern in ("*.md", "docs/**/*.md", "layers/**/*.md") for page in ROOT.glob(pattern))

_CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# The first header cell of a table whose first column quotes texts of the code.
_QUOTING_TABLE = "| error text |"
# What a person can read while an alarm rings. Addresses of links and marks of tables are not words.
_MOST_WORDS = 4000


def quoted_error_texts() -> Iterator[str]:
    """Yield each quoted text in the first column of the reference's tables of error texts."""
    is_quoting = False
    for line in REFERENCE.read_text().splitlines():
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
    """An operator who compares an error with the reference finds the same words."""
    code = texts_in_code()
    quoted = list(quoted_error_texts())
    assert len(quoted) > 30
    assert [text for text in quoted if text not in code] == []


def sections(page: Path) -> dict[str, str]:
    """Return the sections of a page by their titles."""
    parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    return {title: body for title, _, body in (part.partition("\n") for part in parts)}


def sections_in_the_table() -> list[tuple[str, str]]:
    """Return each alarm and problem in the table of the runbook with the title of its section."""
    table = sections(RUNBOOK)["Find the section"]
    rows = re.findall(r"^\| (.*) \| [^|]* \| \[([^\]]+)\]\(#[^)]+\) \|$", table, re.MULTILINE)
    return [(name, title) for names, title in rows for name in _CODE_SPAN.findall(names)]


def test_every_alarm_and_problem_has_a_section() -> None:
    """W4, G7: in the table of the runbook; the section names the problem, so that a search for it finds both."""
    found, pages = sections_in_the_table(), sections(RUNBOOK)
    alarms = {
        resource["Properties"]["AlarmName"]["Fn::Sub"].removeprefix("${AWS::StackName}-")
        for resource in load_template()["Resources"].values()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    }
    kinds = {"outbox", "notification", "nats"}
    assert {*ADVICE, *alarms, *kinds, "DATABASE_UNAVAILABLE"} == {name for name, _ in found}
    assert [name for name, title in found if name.isupper() and name not in pages[title]] == []


def test_advice_names_sections_of_the_runbook() -> None:
    """W4: what the command and the console say leads to a section."""
    named = {name for advice in ADVICE.values() for name in re.findall(r"Runbook: (.+)\.$", advice.to_do)}
    assert len(named) > 10
    assert named - sections(RUNBOOK).keys() == set()


def test_every_section_for_an_alarm_says_the_same_four_things() -> None:
    """W4: what it means, what still works, what to do in at most four steps, and where to go then."""
    pages = sections(RUNBOOK)
    for title in sorted({title for _, title in sections_in_the_table()}):
        body = pages[title]
        steps = re.findall(r"^(\d)\. ", body, re.MULTILINE)
        assert "**Means:**" in body, title
        assert "**Still works:**" in body, title
        assert steps == list("1234"[: len(steps)]), title
        assert len(steps) > 1, title
        assert re.search(r"`(grantwire|sam remote invoke) |in the log of|the log of", body, re.IGNORECASE), title
        assert "\nEscalate: " in body, title


def test_runbook_needs_the_command_and_the_console_only() -> None:
    """T7: an operator without credentials of the database gets that far; SQL and make are in the reference."""
    text = RUNBOOK.read_text()
    assert [word for word in ("```sql", "SELECT ", "UPDATE ", "psql", "`make ") if word in text] == []
    words = re.sub(r"\]\([^)]*\)", "]", text).split()
    assert len([word for word in words if re.search(r"\w", word)]) <= _MOST_WORDS


def test_no_section_of_the_reference_begins_with_sql() -> None:
    """T7: the console and the command come first there, too."""
    with_sql = {title: body.partition("```sql")[0] for title, body in sections(REFERENCE).items() if "```sql" in body}
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
