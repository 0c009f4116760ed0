"""Every log line of the library is in the table of its documentation, and nothing else (C16)."""

from __future__ import annotations

import ast
import re

from tests.support.log_messages import find_log_calls
from tests.support.paths import LIBRARY, ROOT


def test_documentation_lists_exactly_the_log_messages() -> None:
    """C16: a user of the library has no runbook of the service."""
    logged = {
        text
        for path in (LIBRARY / "grantwire_idempotency").rglob("*.py")
        for text, _, _ in find_log_calls(ast.parse(path.read_text()))
    }
    page = (ROOT / "docs" / "idempotency.md").read_text()
    table = page.partition("| level | message |")[2].partition("\n\n")[0]
    listed = {match[1] for match in re.finditer(r"^\| [A-Z, ]+ \| `([^`]+)`", table, re.MULTILINE)}
    assert listed == logged
