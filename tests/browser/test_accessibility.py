"""T5: every page has names, landmarks and contrast, fits on a phone, and works with a keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.operators import PHONE, WIDE, Operator

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from infra.local.stack.embedded import EmbeddedStack

PAGES = {
    "overview": "",
    "dead-letters": "dead-letters",
    "dead-letter-list": "dead-letters/list?state=closed",
    "trace": "trace",
    "user": "users/u_1",
    "entitlement": "users/u_1/item1",
    "commands": "commands",
    "clients": "clients",
    "unknown": "no-such-page",
}
ONE_REFRESH = 3500
# Returns what a person with a screen reader, weak sight or a keyboard could not use.
PROBLEMS = f"({(Path(__file__).parent / 'accessibility.js').read_text()})()"


@pytest.mark.parametrize("place", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize(
    ("colours", "size"), [("light", WIDE), ("dark", WIDE), ("light", PHONE)], ids=["light", "dark", "phone"]
)
def test_page_can_be_used_by_everyone(
    browser: Browser, stack: EmbeddedStack, colours: str, size: dict[str, int], place: str
) -> None:
    """T5: in light and dark colours and on a phone."""
    with Operator.open(browser, stack.api_url, viewport=size, color_scheme=colours) as operator:
        assert operator.page.evaluate(PROBLEMS) == ["no nav"]  # the form to sign in
        operator.sign_in(stack.token)
        operator.visit(place)
        expect(operator.page.get_by_text("Loading…")).to_have_count(0)
        assert operator.page.evaluate(PROBLEMS) == []


def test_console_works_with_the_keyboard_alone(operator: Operator) -> None:
    """T5: skip link, focus on the new page's heading, and a dialog that gives the focus back."""
    page = operator.page
    operator.visit("commands")
    operator.sees("Commands")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Verify read model")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Verify read model")).to_be_focused()
    page.get_by_role("link", name="Trace").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Trace", level=1)).to_be_focused()


def test_focus_returns_to_a_button_that_was_drawn_again(operator: Operator) -> None:
    """T5: a refresh behind an open dialog replaces the button that opened it."""
    page = operator.page
    page.clock.install()
    operator.visit("clients")
    operator.creates_client("screen")
    button = page.get_by_role("button", name="Limits screen")
    button.press("Enter")
    expect(page.locator("dialog")).to_be_visible()
    before = button.element_handle()
    with page.expect_response("**/v1/ops/clients"):
        page.clock.run_for(16_000)
    page.wait_for_function("(button) => !button.isConnected", arg=before)
    page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_refreshing_can_be_paused_and_stops_in_a_hidden_tab(operator: Operator) -> None:
    """T5: a paused or hidden console sends no requests, and shows the current state when it is visible again."""
    page, requests = operator.page, "**/v1/ops/commands*"
    page.clock.install()
    operator.visit("commands")
    operator.sees_card("List")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    with page.expect_response(requests):
        page.clock.run_for(ONE_REFRESH)
    operator.sees_card("List")
    _set_visibility(operator, "hidden")
    assert _sent_within(operator, sent, 10 * ONE_REFRESH) == []
    with page.expect_response(requests):
        _set_visibility(operator, "visible")
    operator.presses("Pause refreshing")
    assert _sent_within(operator, sent, 10 * ONE_REFRESH) == []
    with page.expect_response(requests):
        operator.presses("Pause refreshing")


def test_colours_can_be_switched_and_stay(operator: Operator) -> None:
    """T5: the switch wins over the browser's preference, also after a reload."""
    page = operator.page
    operator.presses("Use dark colours")
    page.reload()
    operator.sees_card("Flow")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    operator.presses("Use light colours")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def _sent_within(operator: Operator, sent: list[str], milliseconds: int) -> list[str]:
    """Let time pass for the page, and return the requests that it sends meanwhile."""
    operator.page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    sent.clear()
    operator.page.clock.run_for(milliseconds)
    operator.page.evaluate("0")
    return sent


def _set_visibility(operator: Operator, state: str) -> None:
    """Hide or show the tab, as far as the page can know."""
    operator.page.evaluate(
        """(state) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => state === "hidden" });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )
