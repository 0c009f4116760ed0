"""W3, W4: the overview says up to when everything has arrived, never a state that may no longer be true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from grantwire.operations.advice import ADVICE
from tests.browser.unit.stubbed_console import example
from tests.support.ops_examples import problem

if TYPE_CHECKING:
    from tests.browser.unit.stubbed_console import StubbedConsole

STATUS = "/v1/ops/status"
SAMPLES = "/v1/ops/samples"
ONE_REFRESH = 8000
AT = "2026-01-08T07:10:00.000000Z"
AWAY = {"code": "UNAVAILABLE", "message": "temporarily unavailable, send the same request again"}


def shown(console: StubbedConsole, **changes: Any) -> None:
    """Show the overview with a status."""
    console.visit("")
    console.answer(console.request("GET", STATUS), example("GET", STATUS) | changes)
    console.answer(console.request("GET", SAMPLES), example("GET", SAMPLES))


def test_first_line_says_up_to_when_everything_has_arrived(console: StubbedConsole) -> None:
    """W3: also while nothing needs a person."""
    shown(console)
    headline = console.page.locator(".headline")
    expect(headline).to_contain_text("OK")
    expect(headline).to_contain_text("Every change up to")
    expect(headline).to_contain_text("has arrived. Entitlements flow. Nothing needs a person.")


def test_problem_has_the_advice_of_the_api(console: StubbedConsole) -> None:
    """W4: with since when and the last error; below are the receiver's state and what waits for which reason."""
    status = example("GET", STATUS)
    receiver = {"state": "UNAVAILABLE", "unavailable_since": AT, "failures_in_a_row": 21, "last_error": "status 500"}
    waiting = {"cause": "status 500", "count": 5004, "oldest_at": AT, "next_attempt_at": AT}
    shown(
        console,
        state="ATTENTION",
        problems=[problem("RECEIVER_UNAVAILABLE", "the circuit is open", since=AT, last_error="status 500")],
        settled=status["settled"] | {"age_seconds": 425.0, "held_back_by": "notifications"},
        receiver=status["receiver"] | receiver,
        notifications=status["notifications"] | {"waiting": [waiting]},
    )
    headline = console.page.locator(".headline")
    for text in (
        *("Every change up to", "waits for 7 min 5 s: its notification is not sent", "1 thing needs attention"),
        *("The receiver is away", "The circuit is open.", "status 500", "still works with RECEIVER_UNAVAILABLE"),
        "to do about RECEIVER_UNAVAILABLE",
    ):
        expect(headline).to_contain_text(text)
    flow = console.page.locator(".flow-wide")
    expect(flow).to_contain_text("Away")
    expect(flow).to_contain_text("circuit open")
    expect(flow).not_to_contain_text("no refusals")
    expect(console.page.locator("tr", has_text="status 500")).to_contain_text("5,004")


def test_every_problem_has_a_title_and_its_advice(console: StubbedConsole) -> None:
    """W4: in the order of the status; several problems with one code are one thing that needs attention."""
    found = [problem(code, f"message of {code}", since=AT, last_error=f"error of {code}") for code in ADVICE]
    found.append(problem("WORKER_LATE", "a second worker is late"))
    shown(console, state="ATTENTION", problems=found)
    items = console.page.locator(".problems > li")
    expect(items).to_have_count(len(ADVICE))
    expect(console.page.locator(".headline")).to_contain_text(f"{len(ADVICE)} things need attention")
    titles = []
    for item, (code, advice) in zip(items.all(), ADVICE.items(), strict=True):
        for text in (f"Message of {code}.", f"error of {code}", f"still works with {code}", f"to do about {code}"):
            expect(item).to_contain_text(text)
        expect(item.locator("dt", has_text="Since")).to_be_visible()
        titles.append(item.get_by_role("heading").inner_text())
        assert titles[-1].lower() != code.replace("_", " ").lower(), "a code without a title"
        assert advice.to_do
    assert len(set(titles)) == len(titles)
    expect(console.page.locator('li[data-code="WORKER_LATE"]')).to_contain_text("A second worker is late.")


@pytest.mark.parametrize(
    ("receiver", "notifications", "text"),
    [
        ({"state": "AVAILABLE"}, {}, "no refusals"),
        ({"state": "AVAILABLE"}, {"failed": 1}, "refuses some"),
        ({"state": "FAILING", "failures_in_a_row": 3}, {}, "3 failures"),
        ({"state": "UNKNOWN"}, {}, "no attempt seen"),
    ],
)
def test_receiver_has_no_refusals_only_if_that_is_true(
    console: StubbedConsole, receiver: dict[str, Any], notifications: dict[str, Any], text: str
) -> None:
    """W4: the box says what delivery knows."""
    status = example("GET", STATUS)
    shown(
        console,
        receiver=status["receiver"] | receiver,
        notifications=status["notifications"] | notifications,
    )
    flow = console.page.locator(".flow-wide")
    expect(flow).to_contain_text(text)
    if text != "no refusals":
        expect(flow).not_to_contain_text("no refusals")


@pytest.mark.parametrize("codes", [[], ["EVENTS_OLD"]], ids=["OK", "ATTENTION"])
def test_verdict_is_hidden_while_postgresql_is_away(console: StubbedConsole, codes: list[str]) -> None:
    """W4: the last numbers stay, without a verdict below the notice."""
    shown(console, problems=[problem(code, "m") for code in codes])
    console.passes(ONE_REFRESH)
    console.answer(console.request("GET", STATUS), AWAY, 503)
    expect(console.page.get_by_text("PostgreSQL is away")).to_be_visible()
    expect(console.page.get_by_text("Below is the state of")).to_be_visible()
    expect(console.page.locator(".headline")).to_be_hidden()
    expect(console.page.locator(".flow-wide")).to_be_visible()
    console.button("Try now").click()
    console.answer(console.request("GET", STATUS), example("GET", STATUS))
    expect(console.page.locator(".headline")).to_be_visible()


def test_token_that_expires_leaves_the_last_state_and_offers_a_sign_in(console: StubbedConsole) -> None:
    """T5: nothing is asked again with this token; after the sign-in the same page is shown."""
    shown(console)
    console.passes(ONE_REFRESH)
    refused = {"code": "UNAUTHENTICATED", "message": "missing or invalid token"}
    console.answer(console.request("GET", STATUS), refused, 401)
    expect(console.page.get_by_text("The token is not valid")).to_be_visible()
    expect(console.page.locator(".flow-wide")).to_be_visible()
    expect(console.page.locator(".headline")).to_be_hidden()
    before = console.count("GET", STATUS)
    console.passes(10 * ONE_REFRESH)
    assert console.count("GET", STATUS) == before
    console.button("Sign in again").click()
    expect(console.page.get_by_label("Token")).to_be_visible()


def test_old_verdict_stays_hidden_until_a_new_state_is_drawn(console: StubbedConsole) -> None:
    """W4: a selected text delays the refresh, so the connection can work again before the state is drawn."""
    shown(console)
    console.passes(ONE_REFRESH)
    console.answer(console.request("GET", STATUS), AWAY, 503)
    expect(console.page.get_by_text("PostgreSQL is away")).to_be_visible()
    console.page.evaluate("getSelection().selectAllChildren(document.querySelector('#workers'))")
    console.button("Try now").click()
    console.page.evaluate("getSelection().selectAllChildren(document.querySelector('#workers'))")
    late = problem("WORKER_LATE", "a worker is late")
    status = example("GET", STATUS) | {"state": "ATTENTION", "problems": [late]}
    console.answer(console.request("GET", STATUS), status)
    expect(console.page.locator(".headline")).to_be_hidden()
    console.page.evaluate("getSelection().removeAllRanges()")
    console.passes(ONE_REFRESH)
    console.answer(console.request("GET", STATUS), status)
    expect(console.page.locator(".headline")).to_contain_text("1 thing needs attention")
    expect(console.page.get_by_text("PostgreSQL is away")).to_be_hidden()
