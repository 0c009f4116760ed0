"""T11, T12: several operators, what the token allows, the zone of times, and a token that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.unit.stubbed_console import SESSION, StubbedConsole, example

if TYPE_CHECKING:
    from playwright.sync_api import Locator

LIST = "/v1/ops/dead-letters"
GROUPS = f"{LIST}/groups"
REDRIVE = f"{LIST}/redrive"
COMMANDS = "/v1/ops/commands"
COMMAND_ID = "019b9c5d-3f40-7abc-8def-0123456789ad"
ONE_REFRESH = 8000
TWO_SECONDS_AGO = "2026-01-08T07:29:59.000000Z"
CAUSE = "receiver responded with status 500"
UNAUTHENTICATED = {"code": "UNAUTHENTICATED", "message": "missing or invalid token"}
NEW_TOKEN = f"gw_test_{'1' * 12}_{'1' * 43}"


def command(**fields: Any) -> dict[str, Any]:
    """Return a redrive of the group by alice, which is done."""
    done: dict[str, Any] = example("GET", f"{COMMANDS}/{{command_id}}")
    return done | {
        "kind": "dead_letters.redrive",
        "status": "DONE",
        "actor": "alice",
        "reason": "the receiver is up again",
        "arguments": {"kind": "notification", "filter": {"cause": CAUSE}},
        "progress": {"selected": 12, "done": 12, "skipped": {}},
        "created_at": TWO_SECONDS_AGO,
        **fields,
    }


def shows_groups(console: StubbedConsole, *groups: tuple[str, str]) -> None:
    """Show open dead letters in groups of 12, by kind and cause."""
    (group,) = example("GET", GROUPS)["groups"]
    shown = [group | {"kind": kind, "cause": cause} for kind, cause in groups or [("notification", CAUSE)]]
    console.visit("dead-letters")
    body = example("GET", GROUPS) | {"open": 12 * len(shown), "groups": shown}
    console.answer(console.request("GET", GROUPS), body)


def previews(console: StubbedConsole, *recent: dict[str, Any], count: int = 12) -> Locator:
    """Preview a redrive, with the recent commands of operators, and return the dialog."""
    console.page.get_by_label("Reason").fill("the receiver is up again")
    console.button("Preview").click()
    preview = console.request("POST", REDRIVE)
    console.answer_all("GET", COMMANDS, {"commands": recent})
    counts = {"selected": count, "would_change": count, "skipped": {}}
    console.answer(preview, example("POST", REDRIVE) | counts)
    expect(console.page.locator(".preview-count")).to_be_visible()
    return console.page.locator("dialog")


def test_second_operator_sees_who_redrove_them_and_when(console: StubbedConsole) -> None:
    """T11: at the preview, with the reason and what came of it, instead of a silent repeat."""
    shows_groups(console)
    console.button("Redrive the group").click()
    dialog = previews(console, command(), count=0)
    expect(dialog.get_by_text("alice redrove them 2 s ago")).to_be_visible()
    expect(dialog.get_by_text("12 of 12 processed. The reason was: the receiver is up again")).to_be_visible()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"arguments": {"kind": "notification", "all": True}}, "alice redrove them"),
        ({"status": "RUNNING", "finished_at": None}, "alice asked to redrive them"),
        ({"kind": "dead_letters.discard"}, "alice discarded them"),
        (
            {"arguments": {"kind": "notification", "all": True, "limit": 5}},
            "alice redrove at most 5 of all of the kind Notification",
        ),
        (
            {"arguments": {"kind": "notification", "ids": [COMMAND_ID]}},
            "alice redrove 1 selected dead letter of the kind Notification",
        ),
    ],
)
def test_notice_says_what_the_other_command_selected(
    console: StubbedConsole, fields: dict[str, Any], text: str
) -> None:
    """T11: `them` only if it selected all of them."""
    shows_groups(console)
    console.button("Redrive the group").click()
    expect(previews(console, command(**fields)).get_by_text(f"{text} 2 s ago")).to_be_visible()


@pytest.mark.parametrize(
    "fields",
    [
        {"arguments": {"kind": "nats", "all": True}},
        {"arguments": {"kind": "notification", "filter": {"cause": "another"}}},
        {"kind": "read_model.rebuild", "arguments": {}},
        {"created_at": "2026-01-08T07:10:00.000000Z"},
    ],
)
def test_command_on_others_or_long_ago_is_not_mentioned(console: StubbedConsole, fields: dict[str, Any]) -> None:
    """T11: only what may concern this selection, of the last ten minutes."""
    shows_groups(console)
    console.button("Redrive the group").click()
    expect(previews(console, command(**fields)).get_by_text("alice")).to_have_count(0)


def test_both_confirm_and_the_second_is_told_why_nothing_was_left(console: StubbedConsole) -> None:
    """T11: both previews were before both confirmations; the own command is not named as that of another."""
    shows_groups(console)
    console.button("Redrive the group").click()
    dialog = previews(console)
    dialog.get_by_role("button", name="Redrive 12 dead letters").click()
    accepted = example("POST", REDRIVE, 202) | {"command_id": COMMAND_ID}
    console.answer(console.request("POST", REDRIVE), accepted, 202)
    own = command(actor="Jane", command_id=COMMAND_ID, progress={"selected": 12, "done": 0, "skipped": {"changed": 12}})
    console.answer(console.request("GET", f"{COMMANDS}/{COMMAND_ID}"), own)
    others = command(command_id=COMMAND_ID.replace("019b", "019a"))
    console.answer_all("GET", COMMANDS, {"commands": [own, others]})
    expect(dialog.get_by_text("alice redrove them 2 s ago")).to_be_visible()
    expect(dialog.get_by_text("Jane")).to_have_count(0)


def test_pages_of_dead_letters_show_recent_actions(console: StubbedConsole) -> None:
    """T11: a group or a row that is gone has a reason, which is shown above."""
    shows_groups(console)
    console.answer_all("GET", COMMANDS, {"commands": [command()]})
    recent = console.page.get_by_role("list", name="Recent actions of operators")
    expect(recent).to_contain_text(f"alice redrove the group Notification, “{CAUSE}”, 2 s ago")
    (dead,) = example("GET", LIST)["dead_letters"]
    last = {"action_id": COMMAND_ID, "action": "redrive", "actor": "bob", "reason": "why", "at": TWO_SECONDS_AGO}
    console.moves_to("dead-letters/list")
    console.answer(console.request("GET", LIST), {"dead_letters": [dead | {"last_action": last}]})
    expect(recent).to_contain_text("alice redrove")
    expect(console.page.locator("tbody tr")).to_contain_text("bob redrove it 2 s ago")


def test_all_groups_of_a_kind_are_one_redrive(console: StubbedConsole) -> None:
    """T11: a kind with one group needs no such button."""
    shows_groups(console, ("notification", CAUSE), ("notification", "connection refused"), ("nats", "poison"))
    bar = console.page.get_by_role("group", name="Actions for all groups of a kind")
    expect(bar.get_by_role("button")).to_have_count(1)
    console.button("Redrive all 2 groups of Notification").click()
    console.page.get_by_label("Reason").fill("the receiver is up again")
    console.button("Preview").click()
    body = console.request("POST", REDRIVE).body
    assert body == {
        "kind": "notification",
        "all": True,
        "dry_run": True,
        "actor": "Jane",
        "reason": "the receiver is up again",
    }


@pytest.mark.parametrize("scopes", [("ops:read",), ("ops:read", "ops:write")])
def test_action_without_its_scope_is_disabled_with_the_reason(console: StubbedConsole, scopes: tuple[str, ...]) -> None:
    """T11: the reason can be read, and is the description of the button, which keeps the focus of a keyboard."""
    allowed = "ops:write" in scopes
    shows_groups(console)
    button = console.button("Redrive the group")
    expect(button).to_be_enabled()  # the API has not said yet who it is
    console.has_scopes(*scopes)
    expect(button).to_be_enabled(enabled=allowed)
    note = console.page.get_by_text("Redrive and discard need the scope ops:write")
    expect(note).to_be_visible(visible=not allowed)
    if not allowed:
        expect(button).to_have_attribute("title", "It needs the scope ops:write, which your token does not have.")
        button.focus()
        expect(button).to_be_focused()
        button.press("Enter")
    else:
        button.click()
    expect(console.page.locator("dialog")).to_have_count(int(allowed))


def test_buttons_that_are_drawn_later_are_disabled_too(console: StubbedConsole) -> None:
    """T11: a refresh replaces the buttons; each page asks for its own scope."""
    console.visit("clients")
    console.has_scopes("clients:read")
    console.answer(console.request("GET", "/v1/ops/clients"), example("GET", "/v1/ops/clients"))
    expect(console.button("Revoke shop")).to_be_disabled()
    expect(console.button("Create client…")).to_be_disabled()
    console.moves_to("commands")
    expect(console.button("Verify read model…")).to_be_disabled()


def test_zone_of_times_can_be_switched_and_stays(console: StubbedConsole) -> None:
    """T11: the header names it; what is shown and what is typed follow, also after a reload."""
    (dead,) = example("GET", LIST)["dead_letters"]
    console.visit("dead-letters/list?since=2026-01-08T07:00:00.000Z")
    since = console.page.get_by_label("Since")
    zone = console.page.locator("#zone")
    expect(zone).to_contain_text("UTC-5")
    expect(since).to_have_value("2026-01-08T02:00")
    zone.click()
    expect(zone).to_have_text("UTC")
    expect(zone).to_be_focused()
    expect(since).to_have_value("2026-01-08T07:00")
    console.request("GET", LIST)
    console.answer(console.request("GET", LIST), {"dead_letters": [dead]})
    expect(console.page.locator("tbody time").first).to_have_attribute(
        "title", "07:20:00 (2026-01-08T07:20:00.000000Z)"
    )
    since.fill("2026-01-08T06:30")
    console.button("Filter").click()
    assert console.request("GET", LIST).query["since"] == "2026-01-08T06:30:00.000Z"
    console.page.reload()
    expect(zone).to_have_text("UTC")
    zone.click()
    expect(zone).to_contain_text("UTC-5")


def signs_in_again(console: StubbedConsole) -> None:
    """Press the button of the notice, and give another token, which the API accepts."""
    console.button("Sign in again").click()
    console.page.get_by_label("Token").fill(NEW_TOKEN)
    console.page.keyboard.press("Enter")
    status = console.request("GET", "/v1/ops/status")
    assert status.headers["Authorization"] == f"Bearer {NEW_TOKEN}"
    console.answer(status, example("GET", "/v1/ops/status"))


def test_form_is_kept_while_the_operator_signs_in_again(console: StubbedConsole) -> None:
    """T11: the token ends at the confirmation; with the new one, the same request is sent with the same key."""
    shows_groups(console)
    console.button("Redrive the group").click()
    dialog = previews(console)
    confirm = dialog.get_by_role("button", name="Redrive 12 dead letters")
    confirm.click()
    first = console.request("POST", REDRIVE)
    console.answer(first, UNAUTHENTICATED, 401)
    signs_in_again(console)
    expect(console.page.get_by_text("The token is not valid")).to_have_count(0)
    confirm.click()
    second = console.request("POST", REDRIVE)
    assert (second.key, second.body) == (first.key, first.body)
    assert second.headers["Authorization"] == f"Bearer {NEW_TOKEN}"


def test_page_is_refreshed_after_signing_in_again(console: StubbedConsole) -> None:
    """T11: its address and what it shows stay; the scopes are those of the new token."""
    shows_groups(console)
    console.has_scopes("ops:read")
    console.passes(ONE_REFRESH)
    console.answer(console.request("GET", GROUPS), UNAUTHENTICATED, 401)
    expect(console.button("Redrive the group")).to_be_disabled()
    signs_in_again(console)
    console.answer(console.request("GET", GROUPS), example("GET", GROUPS))
    expect(console.page.get_by_text("The token is not valid")).to_have_count(0)
    console.has_scopes("ops:read", "ops:write")
    expect(console.button("Redrive the group")).to_be_enabled()
    before = console.count("GET", GROUPS)
    console.passes(ONE_REFRESH)
    assert console.count("GET", GROUPS) == before + 1
    assert console.page.url.endswith("#/dead-letters")


def test_wrong_token_changes_nothing(console: StubbedConsole) -> None:
    """T11: the form asks again; the page and the token of before stay."""
    shows_groups(console)
    console.passes(ONE_REFRESH)
    console.answer(console.request("GET", GROUPS), UNAUTHENTICATED, 401)
    console.button("Sign in again").click()
    console.page.get_by_label("Token").fill(NEW_TOKEN)
    console.page.keyboard.press("Enter")
    console.answer(console.request("GET", "/v1/ops/status"), UNAUTHENTICATED, 401)
    expect(console.page.locator("dialog").get_by_text("The token is not valid")).to_be_visible()
    console.button("Close").click()
    expect(console.page.locator(".live-content.stale")).to_be_visible()
    assert console.page.evaluate("sessionStorage.getItem('grantwire-token')") == SESSION["token"]
