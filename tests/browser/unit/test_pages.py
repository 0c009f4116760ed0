"""T12: what the pages of the console request, and which responses they show."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.unit.stubbed_console import StubbedConsole, example

LIST = "/v1/ops/dead-letters"
TRACE = "/v1/ops/trace"
COMMANDS = "/v1/ops/commands"
STRANGE = "a/b?c#d&e%2F f"
ENCODED = quote(STRANGE, safe="")
ONE_REFRESH = 8000


@pytest.mark.parametrize(("place", "path"), [("dead-letters/list", LIST), ("trace?purchase_id=p_1", TRACE)])
def test_late_response_is_not_drawn_into_the_next_page(console: StubbedConsole, place: str, path: str) -> None:
    """T12: neither a response nor a failure of a page that was left is shown or announced."""
    late = []
    console.visit("commands")
    for _ in range(2):
        console.moves_to(place)
        late.append(console.request("GET", path))
        console.moves_to("commands")
    for _ in range(3):
        console.answer(console.request("GET", COMMANDS), example("GET", COMMANDS))
    before = console.page.locator("body").inner_html()
    console.passes(1000)  # the header has the time of the last refresh
    console.lose(late[0])
    assert console.page.locator("body").inner_html() == before
    console.answer(late[1], example("GET", path))
    assert console.page.locator("body").inner_html() == before


def test_refresh_that_was_overtaken_is_not_drawn(console: StubbedConsole) -> None:
    """T12: the response of a refresh that began before "Show more" does not take the second page away."""
    (dead_letter,) = example("GET", LIST)["dead_letters"]
    first = {"dead_letters": [dead_letter], "next_cursor": "next"}
    second = {"dead_letters": [dead_letter | {"dead_letter_id": dead_letter["event_id"]}]}
    rows = console.page.locator("main tbody tr")
    console.visit("dead-letters/list")
    console.answer(console.request("GET", LIST), first)
    console.passes(ONE_REFRESH)
    late = console.request("GET", LIST)
    console.button("Show more").click()
    console.answer(console.request("GET", LIST), first)
    console.answer(console.request("GET", LIST), second)
    expect(rows).to_have_count(2)
    console.answer(late, first)
    expect(rows).to_have_count(2)


def test_since_is_a_time_of_the_operator(console: StubbedConsole) -> None:
    """T12: the field is in local time, in winter and summer, the request in UTC; the field shows what was typed."""
    console.visit("dead-letters/list")
    console.request("GET", LIST)
    field = console.page.get_by_label("Since")
    times = {"2026-01-08T09:30": "2026-01-08T14:30:00.000Z", "2025-07-08T09:30": "2025-07-08T13:30:00.000Z"}
    for typed, sent in times.items():
        field.fill(typed)
        console.button("Filter").click()
        assert console.request("GET", LIST).query == {"limit": "50", "since": sent}
        expect(field).to_have_value(typed)


def test_since_that_is_no_time_is_left_to_the_api(console: StubbedConsole) -> None:
    """T12: an address that a person typed shows why it was refused, and not an empty page."""
    console.visit("dead-letters/list?since=yesterday")
    request = console.request("GET", LIST)
    assert request.query == {"limit": "50", "since": "yesterday"}
    console.answer(request, {"code": "BAD_REQUEST", "message": "since must be a time"}, status=400)
    expect(console.page.get_by_text("Since must be a time.")).to_be_visible()


def test_id_of_the_address_is_one_part_of_the_path(console: StubbedConsole) -> None:
    """T12: an id with `/` or `?` requests neither another route nor parameters."""
    console.visit(f"users/{ENCODED}")
    answer_user(console)
    console.visit(f"commands/{ENCODED}")
    console.request("GET", f"{COMMANDS}/{ENCODED}")
    console.visit(f"dead-letters/{ENCODED}/{ENCODED}")
    console.request("GET", f"{LIST}/{ENCODED}/{ENCODED}")


def test_id_of_the_address_is_one_parameter(console: StubbedConsole) -> None:
    """T12: also in an address that a person typed, in which `/` and `?` need no encoding."""
    for parameter in (ENCODED, quote(STRANGE, safe="/?")):
        console.visit(f"trace?purchase_id={parameter}")
        assert console.request("GET", TRACE).query == {"purchase_id": STRANGE}


def test_links_and_forms_keep_an_id(console: StubbedConsole) -> None:
    """T12: from the list to the user, from the user to the trace, and with both forms."""
    (dead_letter,) = example("GET", LIST)["dead_letters"]
    console.visit("dead-letters/list")
    console.answer(console.request("GET", LIST), {"dead_letters": [dead_letter | {"user_id": STRANGE}]})
    console.page.get_by_role("link", name=STRANGE).click()
    answer_user(console)
    console.page.get_by_role("link", name=f"Trace {STRANGE}").click()
    assert console.request("GET", TRACE).query == {"user_id": STRANGE, "stock_keeping_unit": STRANGE}
    console.page.get_by_label("Search by").select_option("Purchase")
    console.page.get_by_label("Id", exact=True).fill(STRANGE)
    console.button("Trace").click()
    assert console.request("GET", TRACE).query == {"purchase_id": STRANGE}
    console.moves_to("users")
    console.page.get_by_label("User id").fill(STRANGE)
    console.button("Show").click()
    answer_user(console)


def answer_user(console: StubbedConsole) -> None:
    """Answer the requests of the page of the user, with one entitlement."""
    user = "/v1/users/{user_id}"
    page = example("GET", f"{user}/entitlements")
    page["entitlements"] = [page["entitlements"][0] | {"stock_keeping_unit": STRANGE}]
    for path, body in {
        f"/v1/users/{ENCODED}/entitlements": page,
        f"/v1/users/{ENCODED}/summary": example("GET", f"{user}/summary"),
        f"/debug/notification/inbox/{ENCODED}": example("GET", "/debug/notification/inbox/{user_id}"),
    }.items():
        console.answer(console.request("GET", path), body)
