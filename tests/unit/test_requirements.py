"""Requirement ids: docs/requirements.md lists every id that is cited, and a test cites every listed id."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.paths import LIBRARY_HOME, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

REQUIREMENTS = ROOT / "docs" / "requirements.md"
_ROW = re.compile(r"^\| ([A-Z]\d+) \| \S", re.MULTILINE)


def _listed_ids() -> list[str]:
    return _ROW.findall(REQUIREMENTS.read_text())


def _cited_ids(files: Iterable[Path]) -> dict[str, str]:
    """Return each cited id with the name of a file that cites it.

    Only an id that begins like a listed one counts, because code contains other text such as `B2`. The week of a date,
    as in `2026-W05`, is not an id.
    """
    prefixes = "".join(sorted({requirement[0] for requirement in _listed_ids()}))
    citation = re.compile(rf"(?<![-%\w])([{prefixes}]\d{{1,2}})\b")
    return {requirement: path.name for path in files for requirement in citation.findall(path.read_text())}


def test_each_requirement_is_listed_once() -> None:
    """An id has one meaning."""
    listed = _listed_ids()
    assert len(listed) > 60
    assert len(set(listed)) == len(listed)


def test_each_cited_requirement_is_listed() -> None:
    """An id that a test, an SQL file, a layer or a function cites can be looked up."""
    files = [
        path
        for folder in ("tests", "infra", "layers", "functions")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sql"} and path.name not in {"test_requirements.py", "entitlement_event_pb2.py"}
    ]
    listed = _listed_ids()
    unknown = {requirement: name for requirement, name in _cited_ids(files).items() if requirement not in listed}
    assert not unknown, f"cited, but not in docs/requirements.md: {unknown}"


def test_each_listed_requirement_is_cited_by_a_test() -> None:
    """A requirement has at least one test that names it."""
    folders = (ROOT / "tests", LIBRARY_HOME / "tests")
    tests = [path for folder in folders for path in folder.rglob("test_*.py") if path.name != "test_requirements.py"]
    missing = set(_listed_ids()) - _cited_ids(tests).keys()
    assert not missing, f"no test cites {sorted(missing)}"
