"""The code in the documentation is that of tested programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.documentation import LIBRARY_PAGES, PAGES, fill_programs, list_shown_programs, remove_programs
from tests.support.programs import list_programs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.programs import Program


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_of_a_page_equal_the_tested_files(page: Path) -> None:
    """To update a page, run `python -m tests.support.documentation`."""
    assert page.read_text() == fill_programs(page)


def test_every_program_is_shown() -> None:
    """No tested program is missing in the pages."""
    assert {name for page in PAGES for name in list_shown_programs(page)} == {one.name for one in list_programs()}


@pytest.mark.parametrize("page", LIBRARY_PAGES, ids=lambda page: page.name)
def test_library_pages_contain_no_other_python(page: Path) -> None:
    """C14: every snippet is a file that runs alone."""
    assert "```py" not in remove_programs(page)


@pytest.mark.parametrize("program", list_programs(), ids=lambda program: program.name)
def test_program_says_what_it_prints(program: Program) -> None:
    """A reader can compare; `tests/integration/examples` runs each program and does so."""
    assert program.expected_output
