from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from infra.local.toolchain import browser as browsers
from tests.browser.operators import PATIENCE_MILLISECONDS, Operator
from tests.support.deployed import http, receiver, running_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.receiver import Receiver

__all__ = ["http", "receiver"]

OPTIONS = [
    "--headless",
    "--no-sandbox",  # a container has no user namespaces; the only page is the console
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def program() -> str:
    """The program of the browser; the tests are skipped without one."""
    program = browsers.find_browser()
    if program is None:
        pytest.skip(browsers.MISSING)
    return program


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest, program: str) -> Iterator[Browser]:
    """A Chromium of this machine. A stack that tests of the run need starts before it.

    Playwright keeps an event loop in this thread, in which a stack cannot start.
    """
    if any("stack" in item.fixturenames for item in request.session.items if isinstance(item, pytest.Function)):
        with suppress(Exception):  # pytest raises it again in each test that needs the stack
            request.getfixturevalue("stack")
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, program: str, receiver: Receiver) -> Iterator[EmbeddedStack]:
    """A separate deployed stack, whose notifications go to the receiver."""
    assert program
    with running_stack("browser", receiver, request.config) as stack:
        yield stack


@pytest.fixture
def stranger(browser: Browser, stack: EmbeddedStack) -> Iterator[Operator]:
    """A person with the console in a new browser, who has not signed in."""
    with Operator.open(browser, stack.api_url) as operator:
        yield operator


@pytest.fixture
def operator(stranger: Operator, stack: EmbeddedStack) -> Operator:
    """An operator who has signed in with all scopes."""
    stranger.sign_in(stack.token)
    return stranger
