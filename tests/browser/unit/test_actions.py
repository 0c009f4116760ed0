"""T12: what the console sends when an operator acts, and that repeating it has no second effect."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.unit.stubbed_console import StubbedConsole, example

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.browser.unit.stubbed_console import Sent

LIST = "/v1/ops/dead-letters"
REDRIVE = f"{LIST}/redrive"
COMMANDS = "/v1/ops/commands"
DISCARD = f"{LIST}/discard"
ONE_REFRESH = 8000
MAX_IDS = 400
MAX_PAGE = 200


def new_ids(count: int) -> list[str]:
    """Return new ids of dead letters."""
    return [str(uuid.uuid4()) for _ in range(count)]


def page_of(ids: Sequence[str]) -> dict[str, Any]:
    """Return a list with open dead letters."""
    (dead_letter,) = example("GET", LIST)["dead_letters"]
    return {"dead_letters": [dead_letter | {"dead_letter_id": each} for each in ids]}


def shows_list(console: StubbedConsole, ids: Sequence[str]) -> None:
    """Open the list of dead letters with these, and show all of its pages."""
    pages = [page_of(ids[start : start + MAX_PAGE]) for start in range(0, len(ids), MAX_PAGE)]
    for page in pages[:-1]:
        page["next_cursor"] = "next"
    console.visit("dead-letters/list")
    for count in range(1, len(pages) + 1):
        for page in pages[:count]:
            console.answer(console.request("GET", LIST), page)
        if count < len(pages):
            console.button("Show more").click()


def selects(console: StubbedConsole, *ids: str) -> None:
    """Check the boxes of dead letters."""
    for each in ids:
        console.page.get_by_label(f"Select notification {each}").check()


def previews(console: StubbedConsole, path: str, reason: str = "the receiver is up again") -> Sent:
    """Fill in the dialog, press Preview, answer it and return its request."""
    console.page.get_by_label("Reason").fill(reason)
    console.button("Preview").click()
    preview = console.request("POST", path)
    assert preview.body["dry_run"] is True
    console.answer_all("GET", COMMANDS, {"commands": []})
    count = {"selected": 2, "would_change": 2, "skipped": {}}
    console.answer(preview, example("POST", path) | count)
    return preview


def open_redrive(console: StubbedConsole) -> str:
    """Open the confirmation of a redrive, and return the name of its button."""
    ids = new_ids(2)
    shows_list(console, ids)
    selects(console, *ids)
    console.button("Redrive…").click()
    previews(console, REDRIVE)
    return "Redrive 2 dead letters"


def open_verification(console: StubbedConsole) -> str:
    """Open the form of a command on the read model, and return the name of its button."""
    console.visit("commands")
    console.button("Verify read model…").click()
    console.page.get_by_label("Reason").fill("a doubt")
    return "Verify"


def open_new_client(console: StubbedConsole) -> str:
    """Open the form of a client, and return the name of its button."""
    console.visit("clients")
    console.button("Create client…").click()
    console.page.get_by_label("Name", exact=True).fill("shop")
    console.page.get_by_label("entitlements:read").check()
    console.page.get_by_label("Reason").fill("a new shop")
    return "Create client"


@pytest.mark.parametrize(
    ("open_form", "path"),
    [
        (open_redrive, REDRIVE),
        (open_verification, "/v1/ops/read-model/verify"),
        (open_new_client, "/v1/ops/clients"),
    ],
)
def test_repeat_of_a_change_keeps_its_key(console: StubbedConsole, open_form: Any, path: str) -> None:
    """T1, T12: a double click sends one request, and a try after a lost response is the same request."""
    button = console.page.locator("dialog").get_by_role("button", name=open_form(console), exact=True)
    before = console.count("POST", path)
    button.evaluate("(button) => { button.click(); button.click(); }")
    first = console.request("POST", path)
    button.click(force=True)
    assert console.count("POST", path) == before + 1
    console.lose(first)
    expect(console.page.get_by_text("The API does not respond")).to_be_visible()
    button.click()
    second = console.request("POST", path)
    assert "dry_run" not in second.body
    assert (second.key, second.body) == (first.key, first.body)


def test_confirmation_after_going_back_has_a_new_key_only_if_the_request_differs(console: StubbedConsole) -> None:
    """T1, T12: the first confirmation may have been stored, although its response was lost."""
    keys = []
    button = console.button(open_redrive(console))
    for reason in (None, "the receiver is up again", "another reason"):
        if reason:
            console.button("Back").click()
            previews(console, REDRIVE, reason)
        button.click()
        confirmation = console.request("POST", REDRIVE)
        keys.append(confirmation.key)
        console.lose(confirmation)
    assert keys[0] == keys[1] != keys[2]


def test_discard_is_sent_only_with_its_check_box(console: StubbedConsole) -> None:
    """T5, T12: a discard cannot be undone, so that the operator confirms it twice."""
    (dead_letter,) = new_ids(1)
    shows_list(console, [dead_letter])
    selects(console, dead_letter)
    console.button("Discard…").click()
    previews(console, DISCARD)
    button = console.button("Discard 2 dead letters")
    button.click()
    assert console.count("POST", DISCARD) == 1  # the preview
    console.page.get_by_label("I understand that they are never delivered.").check()
    button.click()
    assert console.request("POST", DISCARD).body["ids"] == [dead_letter]


def test_action_is_about_ids_that_are_shown(console: StubbedConsole) -> None:
    """T12: a dead letter that left the list with a refresh is no longer selected, also when it returns."""
    one, other = new_ids(2)
    shows_list(console, [one, other])
    selects(console, one, other)
    for shown in ([other], [one, other]):
        console.passes(ONE_REFRESH)
        console.answer(console.request("GET", LIST), page_of(shown))
    expect(console.page.get_by_text("1 dead letter selected")).to_be_visible()
    console.button("Redrive…").click()
    assert previews(console, REDRIVE).body["ids"] == [other]


def test_more_ids_than_a_command_takes_are_refused(console: StubbedConsole) -> None:
    """T12: the console says so, and sends none of them. At the limit, it sends all."""
    ids = new_ids(MAX_IDS + 1)
    shows_list(console, ids)
    console.page.get_by_label("Select all").check()
    expect(console.page.get_by_text("401 dead letters selected. A command takes at most 400")).to_be_visible()
    expect(console.button("Redrive…")).to_be_disabled()
    expect(console.button("Discard…")).to_be_disabled()
    console.page.get_by_label(f"Select notification {ids[0]}").uncheck()
    console.button("Redrive…").click()
    assert previews(console, REDRIVE).body["ids"] == ids[1:]


REVOKE_CLIENT = "/v1/ops/clients/{client_id}/revoke"


def open_revocation(console: StubbedConsole) -> None:
    """Open the form that revokes the client of the example, and fill it in."""
    console.visit("clients")
    console.answer(console.request("GET", "/v1/ops/clients"), example("GET", "/v1/ops/clients"))
    console.button("Revoke shop").click()
    console.page.get_by_label("Also all clients below it").check()
    console.page.get_by_label("Reason").fill("the token leaked")


def test_client_is_revoked_with_those_below_it_and_the_rest_is_counted(console: StubbedConsole) -> None:
    """G11, T12: the choice is sent, and clients that are left are not hidden."""
    open_revocation(console)
    console.page.locator("dialog form").get_by_role("button", name="Revoke shop").click()
    sent = console.request("POST", REVOKE_CLIENT.format(client_id="4f9a1b2c3d4e"))
    assert sent.body["with_descendants"] is True
    revoked = example("POST", REVOKE_CLIENT) | {"descendants_active": 2}
    console.answer(sent, revoked)
    expect(console.page.get_by_text("2 clients below it are not revoked")).to_be_visible()


def test_missing_authority_is_told_at_the_form(console: StubbedConsole) -> None:
    """G11, T12: the token is valid and has the scope, so the console calls neither of them wrong."""
    open_revocation(console)
    console.page.locator("dialog form").get_by_role("button", name="Revoke shop").click()
    message = 'no authority over client "4f9a1b2c3d4e": a client can revoke only clients below it'
    console.answer(
        console.request("POST", REVOKE_CLIENT.format(client_id="4f9a1b2c3d4e")),
        {"code": "FORBIDDEN", "message": message},
        403,
    )
    expect(console.page.locator("dialog").get_by_text("No authority over client")).to_be_visible()
    expect(console.page.get_by_text("The token is not valid")).to_have_count(0)
