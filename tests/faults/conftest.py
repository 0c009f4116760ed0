from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from playwright.sync_api import expect, sync_playwright

from infra.local.commands.fault import fault
from infra.local.progress import Progress
from infra.local.toolchain import browser as browsers
from tests.browser.conftest import OPTIONS
from tests.browser.operators import PATIENCE_MILLISECONDS, Operator
from tests.e2e.command import Grantwire
from tests.support.deployed import receiver, running_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.receiver import Receiver

__all__ = ["receiver"]


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[EmbeddedStack]:
    """A separate stack, which the tests break."""
    with running_stack("faults", receiver, request.config) as stack:
        yield stack


@pytest.fixture
def grantwire(stack: EmbeddedStack, tmp_path: Path) -> Grantwire:
    """The installed command, as a person at a terminal uses it."""
    return Grantwire(stack.api_url, stack.token, tmp_path)


@pytest.fixture
def run_fault(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make or repair a fault in the stack of the tests, as `make fault` does in that of a checkout.

    It runs in a thread of its own, because Playwright keeps an event loop in that of the test.
    """
    monkeypatch.setattr("infra.local.stack.selection.current_stack", lambda _progress: stack)
    with ThreadPoolExecutor(1) as pool:

        def run(*arguments: str) -> None:
            assert pool.submit(fault, arguments, Progress(io.StringIO())).result() == 0

        yield run


@pytest.fixture
def forget_losses(stack: EmbeddedStack) -> Callable[[], None]:
    """Let an hour pass since the last loss of the stream, after which the status no longer shows it."""

    def forget() -> None:
        with psycopg.connect(stack.database_url, autocommit=True) as owner:
            owner.execute("UPDATE outbox_republications SET put_back_at = put_back_at - interval '2 hours'")
            owner.execute("UPDATE stream_losses SET detected_at = detected_at - interval '2 hours'")

    return forget


@pytest.fixture
def console(stack: EmbeddedStack) -> Iterator[Operator | None]:
    """The overview of the console, of an operator who has signed in; None without a browser."""
    program = browsers.find_browser()
    if program is None:
        yield None
        return
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        with Operator.open(chromium, stack.api_url) as operator:
            operator.sign_in(stack.token)
            yield operator
        chromium.close()
