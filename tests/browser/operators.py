"""A person who uses the console: what such a person opens, clicks, types and sees."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

SCREENSHOTS = ROOT / "docs" / "console"
UPDATES_SCREENSHOTS = bool(os.environ.get("UPDATE"))
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
# How long a person waits for what must appear: a worker is started every minute, and the machine may be busy.
PATIENCE_MILLISECONDS = 90_000


@contextmanager
def open_page(browser: Browser, **settings: Any) -> Iterator[Page]:
    """Open a page in a new browser profile. At the end, fail if the page had an error or broke its policy."""
    context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light", **settings})
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
    try:
        yield page
        assert problems == []
    finally:
        context.close()


class Operator:
    """A person with the console in a browser."""

    def __init__(self, page: Page, api_url: str) -> None:
        self.page = page
        self._console = f"{api_url}/console"

    @classmethod
    @contextmanager
    def open(cls, browser: Browser, api_url: str, **settings: Any) -> Iterator[Operator]:
        """Open the console in a new browser profile."""
        with open_page(browser, **settings) as page:
            operator = cls(page, api_url)
            operator.visit("")
            yield operator

    def visit(self, place: str) -> None:
        """Open a page of the console by its address, as a bookmark does."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._console}#/{place}")

    def sign_in(self, token: str) -> None:
        """Paste a token, and wait for the page behind the form."""
        self.try_token(token)
        expect(self.page.locator("#sign-out")).to_be_visible()

    def try_token(self, token: str) -> None:
        """Paste a token and press Enter."""
        self.page.get_by_label("Token").fill(token)
        self.page.keyboard.press("Enter")

    def creates_client(self, name: str) -> str:
        """Create a client that may read the status, on the page of clients, and return its token."""
        self.presses("Create client")
        dialog = self.page.locator("dialog")
        dialog.get_by_label("Name", exact=True).fill(name)
        dialog.get_by_label("ops:read").check()
        self.gives_reason("a dashboard")
        self.presses("Create client", within="dialog form")
        token = self.page.locator("#issued-token").inner_text()
        self.presses("I have stored it")
        return token

    def sees(self, text: str, within: str = "main") -> Locator:
        """Wait until a text is visible, and return where."""
        found = self.page.locator(within).get_by_text(text).first
        expect(found).to_be_visible()
        return found

    def sees_card(self, title: str) -> None:
        """Wait until a part of the page is shown by its heading: it has the data of the first response."""
        heading = self.page.locator("main").get_by_role("heading", name=title, exact=True)
        expect(heading).to_be_visible()

    def sees_badge(self, state: str, within: str = "main") -> None:
        """Wait until a state is shown."""
        expect(self._badge(within, state).first).to_be_visible()

    def _badge(self, within: str, state: str) -> Locator:
        return self.page.locator(f"{within} .badge", has_text=re.compile(f"^{state}$"))

    def stops_seeing(self, text: str, within: str = "main") -> None:
        """Wait until a text is not visible any more."""
        found = self.page.locator(within).get_by_text(text)
        expect(found).to_have_count(0)

    def presses(self, name: str, within: str = "body") -> None:
        """Press a button by its name."""
        self.page.locator(within).get_by_role("button", name=name).first.click()

    def follows(self, name: str, within: str = "main") -> None:
        """Follow a link by its name."""
        self.page.locator(within).get_by_role("link", name=name).first.click()

    def gives_reason(self, reason: str) -> None:
        """Fill in the two fields that every change records."""
        self.page.get_by_label("Your name").fill("Jane")
        self.page.get_by_label("Reason").fill(reason)

    def acts(self, action: str, reason: str) -> None:
        """Preview an action on dead letters, confirm it, and wait until the command is done."""
        self.gives_reason(reason)
        self.presses("Preview", within="dialog")
        self.sees("would be", within="dialog")
        if action == "Discard":
            self.page.locator("dialog").get_by_role("checkbox").check()
        self.presses(f"{action} 1 dead letter", within="dialog")
        self.sees_badge("DONE", within="dialog")

    def sees_state(self, state: str) -> None:
        """Search again until the trace that is shown has this state."""
        badge = self._badge(".trace-summary", state)
        for _ in range(PATIENCE_MILLISECONDS // 1000):
            if badge.count():
                break
            self.page.wait_for_timeout(1000)
            self.page.get_by_role("button", name="Trace").click()
            expect(self.page.get_by_text("Searching…")).to_have_count(0)
        expect(badge).to_be_visible()

    def traces(self, way: str, value: str) -> None:
        """Open the trace of an id."""
        self.visit(f"trace?{way}={value}")

    def takes_screenshot(self, name: str, *, full_page: bool = True) -> None:
        """Write the page, or its visible part, to docs/console, if UPDATE is set."""
        if UPDATES_SCREENSHOTS:
            SCREENSHOTS.mkdir(exist_ok=True)
            self.page.mouse.move(0, 0)
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=full_page)
