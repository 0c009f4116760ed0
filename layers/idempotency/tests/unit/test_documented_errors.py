"""The table of errors in the guide is complete, and its classes are those of the module (C31)."""

from __future__ import annotations

import inspect

from grantwire_idempotency import errors
from tests.support.paths import LIBRARY_HOME


def test_table_lists_every_error_with_its_base_class() -> None:
    """C31: nothing is missing, and nothing else is listed; each row says when and, if there is anything, what to do."""
    page = (LIBRARY_HOME / "docs" / "guide.md").read_text()
    table = page.partition("| error | is a | raised if | what to do |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()[1:]]
    classes = inspect.getmembers(errors, inspect.isclass)
    real = {name: f"`{error.__bases__[0].__name__}`" for name, error in classes if issubclass(error, Exception)}
    assert {name.strip("`"): base for name, base, *_ in rows} == real
    assert [row for row in rows if len(row) != 4 or not row[2]] == []
    assert len(rows) == len(real)
