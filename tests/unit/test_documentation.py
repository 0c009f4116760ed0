"""The examples in the documentation are tested code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.documentation import PAGES, fill_examples, list_example_names, read_examples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page_equal_the_tested_code(page: Path) -> None:
    """To update a page, run `python -m tests.support.documentation`."""
    assert page.read_text() == fill_examples(page)


def test_every_example_is_shown_once() -> None:
    """No tested example is missing in the pages, and none is shown twice."""
    assert sorted(name for page in PAGES for name in list_example_names(page)) == sorted(read_examples())
