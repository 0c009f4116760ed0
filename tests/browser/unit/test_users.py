"""T11, T12: what support does with a user: find it, page and filter, grant, revoke and extend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.unit.stubbed_console import StubbedConsole, example

if TYPE_CHECKING:
    from tests.browser.unit.stubbed_console import Sent

USER = "/v1/users/u_1"
LIST = f"{USER}/entitlements"
CHECK = f"{LIST}/club"
TRACE = "/v1/ops/trace"
TEMPLATE = "/v1/users/{user_id}/entitlements"
GRANTS, EXTENSIONS, REVOKES = (f"/v1/entitlements/{name}" for name in ("grants", "extensions", "revokes"))
ACTIVE = {"stock_keeping_unit": "club", "status": "ACTIVE", "version": 3, "updated_at": "2026-01-08T07:10:00.000000Z"}
END = "2026-02-08T07:10:00.000000Z"
NOTHING = {"query": {}, "truncated": False, "changes": [], "timeline": [], "removed": []}
TYPED = {"Reason": "goodwill", "Purchase or case": "case 4711"}


def shows_user(console: StubbedConsole, *entitlements: dict[str, Any], place: str = "users/u_1", **page: Any) -> Sent:
    """Open the page of the user, and answer its request for entitlements."""
    console.visit(place)
    sent = console.request("GET", LIST)
    console.answer(sent, {"user_id": "u_1", "entitlements": entitlements, **page})
    console.answer(console.request("GET", f"{USER}/summary"), example("GET", "/v1/users/{user_id}/summary"))
    inbox = "/debug/notification/inbox/"
    console.answer(console.request("GET", f"{inbox}u_1"), example("GET", f"{inbox}{{user_id}}"))
    return sent


def checked(**fields: Any) -> dict[str, Any]:
    """Return the response to a check of the entitlement."""
    check: dict[str, Any] = example("GET", f"{TEMPLATE}/{{stock_keeping_unit}}")
    return check | {"user_id": "u_1", "stock_keeping_unit": "club", "version": 3, "starts_at": None, **fields}


def previews(console: StubbedConsole, name: str, before: dict[str, Any], **typed: str) -> None:
    """Open the form of a change of the entitlement, fill it in, and answer the question about its state."""
    console.button(name).click()
    for label, text in (TYPED | typed).items():
        console.page.locator("dialog").get_by_label(label, exact=True).fill(text)
    console.button("Preview").click()
    console.answer(console.request("GET", CHECK), before)


def test_any_id_finds_a_user(console: StubbedConsole) -> None:
    """T11: after the purchase, before the idempotency key; the rows lead to the trace and to all of the user."""
    console.visit("trace?id=u_1")
    console.answer(console.request("GET", TRACE), NOTHING | {"query": {"purchase_id": "u_1"}})
    sent = console.request("GET", LIST)
    console.answer(sent, {"user_id": "u_1", "entitlements": [ACTIVE], "next_after": "club"})
    expect(console.page.locator("main").get_by_text("Found as user.")).to_be_visible()
    expect(console.page.get_by_role("link", name="Trace club")).to_be_visible()
    assert console.count("GET", TRACE) == 1
    console.page.get_by_role("link", name="Show all of this user").click()
    assert console.request("GET", LIST).query == {"limit": "100"}


@pytest.mark.parametrize("refusal", [None, "BAD_REQUEST", "FORBIDDEN"])
def test_id_of_no_user_is_searched_further(console: StubbedConsole, refusal: str | None) -> None:
    """T11: also if it cannot be the id of a user, or if the token may not read users."""
    console.visit("trace?id=u_1")
    console.answer(console.request("GET", TRACE), NOTHING)
    sent = console.request("GET", LIST)
    if refusal is None:
        console.answer(sent, {"user_id": "u_1", "entitlements": []})
    elif refusal == "BAD_REQUEST":
        console.answer(sent, {"code": refusal, "message": "user_id must not contain control characters"}, 400)
    else:
        console.answer(sent, {"code": refusal, "message": "missing required scope entitlements:read"}, 403)
    key = console.request("GET", TRACE)
    assert key.query == {"idempotency_key": "u_1"}
    console.answer(key, NOTHING)
    expect(console.page.get_by_text("Nothing is known about it")).to_be_visible()


def test_pages_of_entitlements_are_addresses(console: StubbedConsole) -> None:
    """T11: one request shows one page, however many there are; next, first, and back work."""
    first = shows_user(console, ACTIVE, next_after="club")
    assert first.query == {"limit": "100"}
    console.page.get_by_role("link", name="Next page").click()
    second = console.request("GET", LIST)
    assert second.query == {"limit": "100", "after": "club"}
    console.answer(second, {"user_id": "u_1", "entitlements": [ACTIVE | {"stock_keeping_unit": "d"}]})
    console.answer(console.request("GET", f"{USER}/summary"), example("GET", "/v1/users/{user_id}/summary"))
    console.answer_all("GET", "/debug/notification/inbox/u_1", {"user_id": "u_1", "notifications": []})
    expect(console.page.get_by_role("link", name="Next page")).to_have_count(0)
    console.page.get_by_role("link", name="First page").click()
    assert console.request("GET", LIST).query == {"limit": "100"}
    console.page.go_back()
    assert console.request("GET", LIST).query == {"limit": "100", "after": "club"}


def test_filters_are_kept_on_the_next_page(console: StubbedConsole) -> None:
    """T11: the status and the beginning of the name are asked for, and are part of the address."""
    shows_user(console, ACTIVE)
    console.page.get_by_label("Status").select_option("Active")
    console.page.get_by_label("SKU begins with").fill("c/")
    console.button("Filter").click()
    sent = console.request("GET", LIST)
    assert sent.query == {"limit": "100", "status": "ACTIVE", "prefix": "c/"}
    expect(console.page.get_by_label("SKU begins with")).to_have_value("c/")
    console.answer(sent, {"user_id": "u_1", "entitlements": [], "next_after": "c/9"})
    console.answer(console.request("GET", f"{USER}/summary"), example("GET", "/v1/users/{user_id}/summary"))
    console.answer_all("GET", "/debug/notification/inbox/u_1", {"user_id": "u_1", "notifications": []})
    expect(console.page.get_by_text("None of this page match")).to_be_visible()
    console.page.get_by_role("link", name="Next page").click()
    assert console.request("GET", LIST).query == {"limit": "100", "status": "ACTIVE", "prefix": "c/", "after": "c/9"}


def test_grant_shows_the_state_before_and_after_and_is_sent_once_confirmed(console: StubbedConsole) -> None:
    """T11: with its reason and the zone of the operator; a repeat keeps its key, and the result is that of the API."""
    shows_user(console)
    console.button("Grant…").click()
    dialog = console.page.locator("dialog")
    dialog.get_by_label("Stock keeping unit").fill("club")
    dialog.get_by_label("Reason").fill("goodwill")
    dialog.get_by_label("Purchase or case").fill("case 4711")
    dialog.get_by_label("Ends").fill("2026-02-08T02:10")
    console.button("Preview").click()
    console.answer(console.request("GET", CHECK), checked(status="NONE", version=None, allowed=False, expires_at=None))
    cells = dialog.locator("tbody tr", has_text="Status").locator("td")
    expect(cells).to_have_text(["Status", "NONE", "ACTIVE"])
    expect(dialog.locator("tbody tr", has_text="Starts").locator("td")).to_have_text(["Starts", "\N{EN DASH}", "now"])
    expect(dialog.locator("tbody tr", has_text="Ends").locator("td")).to_have_text(
        ["Ends", "\N{EN DASH}", "8 Feb 2026, 02:10:00"]
    )
    assert console.count("POST", GRANTS) == 0
    confirm = dialog.get_by_role("button", name="Grant club")
    confirm.evaluate("(button) => { button.click(); button.click(); }")
    first = console.request("POST", GRANTS)
    assert first.body == {
        "user_id": "u_1",
        "stock_keeping_unit": "club",
        "reason": "goodwill",
        "purchase_id": "case 4711",
        "expires_at": "2026-02-08T07:10:00.000Z",
    }
    assert console.count("POST", GRANTS) == 1
    console.lose(first)
    confirm.click()
    second = console.request("POST", GRANTS)
    assert (second.key, second.body) == (first.key, first.body)
    console.answer(second, example("POST", GRANTS) | {"stock_keeping_unit": "club", "version": 1})
    expect(dialog.get_by_text("club is ACTIVE")).to_be_visible()
    expect(dialog.get_by_text("It changed between")).to_have_count(0)


def test_revoke_says_if_another_change_came_in_between(console: StubbedConsole) -> None:
    """T11: the operator confirmed the state of the preview, and is told that it was another one."""
    shows_user(console, ACTIVE)
    previews(console, "Revoke club", checked(expires_at=None))
    dialog = console.page.locator("dialog")
    expect(dialog.locator("tbody tr", has_text="Status").locator("td")).to_have_text(["Status", "ACTIVE", "REVOKED"])
    dialog.get_by_role("button", name="Revoke club").click()
    sent = console.request("POST", REVOKES)
    assert sent.body == {
        "user_id": "u_1",
        "stock_keeping_unit": "club",
        "reason": "goodwill",
        "purchase_id": "case 4711",
    }
    console.answer(sent, example("POST", REVOKES) | {"stock_keeping_unit": "club", "version": 5})
    expect(dialog.get_by_text("It changed between the preview and the confirmation")).to_be_visible()


@pytest.mark.parametrize(("ends", "sent_end"), [("2026-03-08T12:00", "2026-03-08T16:00:00.000Z"), ("", None)])
def test_extension_sends_its_end_or_none(console: StubbedConsole, ends: str, sent_end: str | None) -> None:
    """T11: the form begins with the current end, in the zone of the operator; empty means no end."""
    shows_user(console, ACTIVE | {"expires_at": END})
    console.button("Extend club").click()
    expect(console.page.get_by_label("Ends")).to_have_value("2026-02-08T02:10")
    console.button("Close").click()
    previews(console, "Extend club", checked(expires_at=END), Ends=ends)
    console.button("Extend club").last.click()
    assert console.request("POST", EXTENSIONS).body["expires_at"] == sent_end


@pytest.mark.parametrize(
    ("name", "before", "text"),
    [
        ("Revoke", {"status": "REVOKED", "allowed": False}, "It is already REVOKED."),
        ("Extend", {"status": "EXPIRED", "allowed": False}, "It is EXPIRED; grant it again."),
        ("Extend", {"status": "ACTIVE", "expires_at": END}, "It already has this end."),
    ],
)
def test_change_that_changes_nothing_cannot_be_confirmed(
    console: StubbedConsole, name: str, before: dict[str, Any], text: str
) -> None:
    """T11: the list was older than the check of the preview."""
    shows_user(console, ACTIVE | {"expires_at": END})
    previews(console, f"{name} club", checked(**before))
    dialog = console.page.locator("dialog")
    expect(dialog.get_by_text(text)).to_be_visible()
    expect(dialog.get_by_role("button", name=f"{name} club")).to_have_count(0)
    console.button("Back").click()
    expect(dialog.get_by_label("Reason")).to_have_value("goodwill")


def test_refused_change_is_told_at_the_preview(console: StubbedConsole) -> None:
    """T11: the API decides; another operator was faster."""
    shows_user(console, ACTIVE)
    previews(console, "Revoke club", checked(expires_at=None))
    console.page.locator("dialog").get_by_role("button", name="Revoke club").click()
    refused = {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already REVOKED"}
    console.answer(console.request("POST", REVOKES), refused, 409)
    expect(console.page.locator("dialog").get_by_text("Already REVOKED.")).to_be_visible()


def test_entitlement_shows_why_and_who_changed_it(console: StubbedConsole) -> None:
    """T11: the audit of the change that was just made has the client of the operator, its reason and the case."""
    console.visit("users/u_1/club")
    console.has_scopes("entitlements:read", "entitlements:write")
    why = {"code": "ACTIVE", "message": f"active until {END}"}
    console.answer(console.request("GET", CHECK), checked(expires_at=END, reason=why))
    history = example("GET", f"{TEMPLATE}/{{stock_keeping_unit}}/history")
    history["history"][0] |= {"caller": "4f9a1b2c3d4e", "reason": "goodwill", "purchase_id": "case 4711"}
    sent = console.request("GET", f"{CHECK}/history")
    assert sent.query == {"limit": "50"}
    console.answer(sent, history | {"next_before": "2026-01-08T07:10:00.000123Z"})
    row = console.page.locator("tbody tr").first
    for text in ("Revoke", "goodwill", "case 4711", "4f9a1b2c3d4e (you)"):
        expect(row).to_contain_text(text)
    expect(console.page.get_by_text("Active until 8 Feb 2026, 02:10:00.")).to_be_visible()
    expect(console.button("Extend club")).to_be_enabled()
    console.page.get_by_role("link", name="Older").click()
    assert console.request("GET", f"{CHECK}/history").query["before"] == "2026-01-08T07:10:00.000123Z"
