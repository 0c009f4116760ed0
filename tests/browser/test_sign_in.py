"""T5, T6: signing in, what the console keeps, and what it says about a token that does not suffice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token, generate_client_id
from infra.local.stack.development_client import TOKEN_ENVIRONMENT
from tests.e2e.callers import create_caller

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.browser.operators import Operator

STORED = "JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}])"


def test_text_that_is_no_token_is_not_sent(stranger: Operator) -> None:
    """T6: the form says what a token looks like, and sends no request."""
    sent: list[str] = []
    stranger.page.on("request", lambda request: sent.append(request.url))
    stranger.try_token("hunter2")
    stranger.sees("This is not a token")
    assert sent == []


def test_wrong_token_is_refused_and_forgotten(stranger: Operator) -> None:
    """T6: a token of no client shows nothing, and does not stay in the browser."""
    token = Token.mint(TOKEN_ENVIRONMENT, generate_client_id()).text
    stranger.try_token(token)
    stranger.sees("The token is not valid")
    assert token not in stranger.page.evaluate(STORED)
    expect(stranger.page.locator("#sign-out")).to_have_count(0)


def test_token_stays_in_the_tab_and_ends_with_it(stranger: Operator, stack: EmbeddedStack) -> None:
    """T5: the token is neither in an address nor in storage that other tabs share, and signing out removes it."""
    addresses: list[str] = []
    stranger.page.on("request", lambda request: addresses.append(request.url))
    stranger.takes_screenshot("sign-in", full_page=False)
    stranger.sign_in(stack.token)
    stranger.sees_card("Flow")
    assert not any(stack.token in address for address in addresses)
    assert stack.token not in stranger.page.evaluate(
        "JSON.stringify([location.href, document.cookie, {...localStorage}])"
    )
    stranger.page.reload()
    stranger.sees_card("Flow")
    other = stranger.page.context.new_page()
    other.goto(stranger.page.url)
    expect(other.get_by_label("Token")).to_be_visible()
    stranger.presses("Sign out")
    expect(stranger.page.get_by_label("Token")).to_be_visible()
    assert stack.token not in stranger.page.evaluate(STORED)


def test_address_of_a_page_works_after_signing_in(stranger: Operator, stack: EmbeddedStack) -> None:
    """T5: a bookmark or a link in an alarm leads to its page."""
    stranger.visit("commands")
    stranger.sign_in(stack.token)
    expect(stranger.page.get_by_role("heading", name="Commands", level=1)).to_be_visible()


def test_missing_scope_is_named_and_other_parts_work(stranger: Operator, stack: EmbeddedStack) -> None:
    """T6: an operator who can only read sees the system, and the console names the scope that an action needs."""
    stranger.sign_in(create_caller(stack, Scope.READ_OPERATIONS).token)
    stranger.sees_card("Flow")
    stranger.visit("clients")
    stranger.sees("Your token lacks the scope clients:read")
    stranger.visit("users/u_1")
    stranger.sees("Your token lacks the scope entitlements:read")
    stranger.visit("commands")
    stranger.sees("Verify and rebuild need the scope ops:write")
    expect(stranger.page.get_by_role("button", name="Verify read model")).to_be_disabled()


def test_token_without_the_scope_of_operators_says_so(stranger: Operator, stack: EmbeddedStack) -> None:
    """T6: the token is valid, so the console does not call it wrong."""
    stranger.sign_in(create_caller(stack, Scope.READ_ENTITLEMENTS, Scope.READ_CLIENTS).token)
    stranger.sees("Your token lacks the scope ops:read")
    stranger.follows("Clients", within="nav")
    stranger.sees("Registered clients")
