"""docs/requirements.md lists every requirement id that is cited, and every listed id is cited by a test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

REQUIREMENTS = ROOT / "docs" / "requirements.md"
_ROW = re.compile(r"^\| ([A-Z]\d+) \| \S", re.MULTILINE)


def _listed() -> list[str]:
    return _ROW.findall(REQUIREMENTS.read_text())


def _cited(files: Iterable[Path], letters: set[str]) -> dict[str, str]:
    """Return each cited id with one file that cites it. Only capital letters that begin a listed id count."""
    citation = re.compile(rf"(?<![%\w])([{''.join(sorted(letters))}]\d{{1,2}})\b")
    return {found: path.name for path in files for found in citation.findall(path.read_text())}


def _letters() -> set[str]:
    return {requirement[0] for requirement in _listed()}


def test_each_requirement_is_listed_once() -> None:
    """An id has one sentence."""
    listed = _listed()
    assert len(listed) > 60
    assert len(set(listed)) == len(listed)


def test_each_cited_requirement_is_listed() -> None:
    """No reference in a test, an SQL file, the layers or the functions dangles."""
    files = [
        path
        for folder in ("tests", "infra", "layers", "functions")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sql"} and path.name not in {"test_requirements.py", "entitlement_event_pb2.py"}
    ]
    unknown = {found: name for found, name in _cited(files, _letters()).items() if found not in _listed()}
    assert not unknown, f"cited, but not in docs/requirements.md: {unknown}"


def test_each_listed_requirement_is_cited_by_a_test() -> None:
    """A requirement without a test is a wish."""
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_requirements.py"]
    missing = set(_listed()) - _cited(tests, _letters()).keys()
    assert not missing, f"no test cites {sorted(missing)}"
