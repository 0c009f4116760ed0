"""Every log line of the library is in the table of its documentation with its levels, and nothing else (C16)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.support.log_messages import find_log_calls
from tests.support.paths import LIBRARY, LIBRARY_HOME


def test_documentation_lists_exactly_the_log_messages() -> None:
    """C16: a user of the library has no runbook of the service."""
    logged: dict[str, set[str]] = defaultdict(set)
    for path in (LIBRARY / "grantwire_idempotency").rglob("*.py"):
        for text, level, _ in find_log_calls(ast.parse(path.read_text())):
            logged[text].add(level)
    page = (LIBRARY_HOME / "docs" / "guide.md").read_text()
    table = page.partition("| level | message |")[2].partition("\n\n")[0]
    rows = re.finditer(r"^\| ([A-Z, ]+) \| `([^`]+)`", table, re.MULTILINE)
    assert {row[2]: set(row[1].split(", ")) for row in rows} == logged
