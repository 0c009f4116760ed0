"""T11: what support does in the console: change what a user has, and act beside another operator."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from grantwire.clients.scopes import Scope
from tests.browser.operators import Operator
from tests.e2e.callers import create_caller

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http
    from tests.support.receiver import Receiver


@pytest.fixture
def user() -> str:
    """A new user."""
    return f"u_{uuid.uuid4().hex[:12]}"


def test_entitlement_is_granted_extended_and_revoked(operator: Operator, user: str) -> None:
    """T11: each change is previewed and confirmed, and its reason is in the history with the client."""
    operator.visit(f"users/{user}")
    operator.sees("This user was never granted anything")
    operator.presses("Grant…", within="main")
    operator.page.get_by_label("Stock keeping unit", exact=True).fill("club")
    changes(operator, "Grant", "goodwill", ends="2999-02-08T07:10", screenshot="change-preview")
    operator.sees_badge("ACTIVE")
    operator.follows("club")
    operator.presses("Extend club", within="main")
    changes(operator, "Extend", "renewal", ends="")
    operator.sees("no end")
    operator.presses("Revoke club", within="main")
    changes(operator, "Revoke", "refund")
    operator.sees_badge("REVOKED", within=".definitions")
    for reason in ("goodwill", "renewal", "refund"):
        operator.sees(reason, within="tbody")
    expect(operator.page.locator("tbody").get_by_text("(you)")).to_have_count(3)
    operator.takes_screenshot("entitlement", full_page=False)


def changes(operator: Operator, name: str, reason: str, ends: str | None = None, screenshot: str | None = None) -> None:
    """Fill in the form of a change, preview and confirm it."""
    dialog = operator.page.locator("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_label("Purchase or case").fill("case 4711")
    if ends is not None:
        dialog.get_by_label("Ends").fill(ends)
    operator.presses("Preview", within="dialog")
    operator.sees("Afterwards", within="dialog")
    if screenshot:
        operator.takes_screenshot(screenshot, full_page=False)
    operator.presses(f"{name} club", within="dialog")
    operator.sees("club is", within="dialog")
    operator.presses("Close", within="dialog div.dialog-actions")


def test_many_entitlements_are_filtered_and_paged(operator: Operator, http: Http, user: str) -> None:
    """T11: a page has a hundred; any id finds the user."""
    for number in range(102):
        http.grant(f"{user}-{number}", user_id=user, stock_keeping_unit=f"item-{number:03}")
    shown = '[role="region"][aria-label="Entitlements"]'
    operator.visit(f"trace?id={user}")
    operator.sees("Found as user.")
    operator.follows("Show all of this user")
    operator.sees("item-099", within=shown)
    operator.follows("Next page")
    operator.sees("item-101", within=shown)
    operator.page.get_by_label("SKU begins with").fill("item-05")
    operator.presses("Filter", within="main")
    operator.sees("item-059", within=shown)
    operator.stops_seeing("item-060", within=shown)
    operator.takes_screenshot("entitlements", full_page=False)


def test_second_operator_sees_who_was_first(
    operator: Operator, browser: Browser, stack: EmbeddedStack, receiver: Receiver, http: Http, user: str
) -> None:
    """T11: both look at one group; the second confirms nothing and sees who redrove it, when and why."""
    receiver.status = 500
    try:
        http.grant(user, user_id=user, purchase_id=user)
        operator.visit("dead-letters")
        operator.sees("receiver responded with status 500")
        with Operator.open(browser, stack.api_url) as other:
            other.sign_in(stack.token)
            other.visit("dead-letters")
            other.sees("receiver responded with status 500")
            other.presses("Redrive the group receiver")
            receiver.status = 204
            operator.presses("Redrive the group receiver")
            operator.acts("Redrive", "the receiver is up again")
            other.gives_reason("it looks repaired")
            other.presses("Preview", within="dialog")
            other.sees("Jane redrove them", within="dialog")
            other.takes_screenshot("second-operator", full_page=False)
    finally:
        receiver.status = 204


def test_actions_beyond_the_scopes_are_disabled(stranger: Operator, stack: EmbeddedStack, user: str) -> None:
    """T11: the page of a user for someone who may only read it."""
    stranger.sign_in(create_caller(stack, Scope.READ_OPERATIONS, Scope.READ_ENTITLEMENTS).token)
    stranger.visit(f"users/{user}")
    stranger.sees("A change of an entitlement needs the scope")
    expect(stranger.page.get_by_role("button", name="Grant…")).to_be_disabled()
    stranger.takes_screenshot("missing-scope", full_page=False)
