from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from functions.console.handler import PAGE
from grantwire.api.console import Console
from tests.browser import operators
from tests.browser.unit.stubbed_console import StubbedConsole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

# Nothing takes long here, but the machine may be busy.
PATIENCE_MILLISECONDS = 20_000


@pytest.fixture(scope="session")
def page_of_console() -> Console:
    """The page as the function serves it."""
    return Console.assemble(PAGE)


@pytest.fixture
def console(browser: Browser, page_of_console: Console) -> Iterator[StubbedConsole]:
    """The console in New York, five hours behind UTC in winter and four in summer."""
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with StubbedConsole.open(browser, page_of_console, timezone_id="America/New_York") as console:
        console.page.context.set_default_timeout(PATIENCE_MILLISECONDS)
        yield console
    expect.set_options(timeout=operators.PATIENCE_MILLISECONDS)
