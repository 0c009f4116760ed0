"""The examples in the documentation are tested code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.documentation import PAGES, examples, filled, shown

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page_equal_the_tested_code(page: Path) -> None:
    """To update a page, run `python -m tests.support.documentation`."""
    assert page.read_text() == filled(page)


def test_every_example_is_shown_once() -> None:
    """No tested example is missing in the pages, and none is shown twice."""
    assert sorted(name for page in PAGES for name in shown(page)) == sorted(examples())
