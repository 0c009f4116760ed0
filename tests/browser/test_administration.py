"""T5: clients and commands in the console."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.browser.operators import Operator

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from infra.local.stack.embedded import EmbeddedStack


def test_client_is_created_used_limited_rotated_and_revoked(
    operator: Operator, browser: Browser, stack: EmbeddedStack
) -> None:
    """T1, T5: the token is shown once and works, and every change is visible in the list."""
    name = f"dashboard {uuid.uuid4().hex[:6]}"
    operator.visit("clients")
    token = operator.creates_client(name)
    dialog = operator.page.locator("dialog")
    with Operator.open(browser, stack.api_url) as other:
        other.sign_in(token)
        other.sees_card("Flow")
    row = operator.page.locator("tr", has_text=name)
    expect(row.get_by_text("ops:read")).to_be_visible()
    assert token not in operator.page.content()

    operator.presses(f"Limits {name}")
    dialog.get_by_label("Requests per second").fill("5")
    dialog.get_by_label("Burst").fill("7")
    operator.gives_reason("it asks too often")
    operator.presses("Save limits")
    expect(row.get_by_text("5/s, burst 7")).to_be_visible()
    operator.takes_screenshot("clients", full_page=False)

    operator.presses(f"Rotate {name}")
    operator.gives_reason("the yearly rotation")
    operator.presses("Issue new token")
    assert operator.page.locator("#issued-token").inner_text() != token
    operator.presses("I have stored it")

    operator.presses(f"Revoke {name}")
    operator.gives_reason("no longer used")
    operator.presses(f"Revoke {name}", within="dialog")
    expect(row.get_by_text("REVOKED", exact=True)).to_be_visible()


def test_refused_request_says_why_and_keeps_the_form(operator: Operator) -> None:
    """T5: the message of the API is shown at the form, which can be corrected."""
    operator.visit("clients")
    operator.presses("Create client")
    dialog = operator.page.locator("dialog")
    dialog.get_by_label("Name", exact=True).fill("development")
    dialog.get_by_label("ops:read").check()
    operator.gives_reason("a second one")
    operator.presses("Create client", within="dialog form")
    operator.sees("already exists", within="dialog")
    expect(dialog.get_by_label("Reason")).to_have_value("a second one")


def test_read_model_is_verified_by_a_command(operator: Operator) -> None:
    """T1, P2: the command is followed to its result, and stays in the list with actor and reason."""
    reason = f"a look {uuid.uuid4().hex[:6]}"
    operator.visit("commands")
    operator.presses("Verify read model")
    operator.gives_reason(reason)
    operator.presses("Verify", within="dialog form")
    operator.sees_badge("DONE", within="dialog")
    operator.follows("Open the command", within="dialog")
    operator.sees(reason)
    operator.sees("Missing")
    operator.follows("Commands")
    operator.sees(reason)
    operator.takes_screenshot("commands", full_page=False)
