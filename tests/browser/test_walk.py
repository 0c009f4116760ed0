"""T6: the walk of an operator: see a grant flow, break it, see it, find the cause, repair it, see it SENT."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING, Any

import nats
import psycopg
import pytest
from playwright.sync_api import expect

from infra.local.deployment.template import declared_parameters
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS
from tests.browser.operators import PHONE, UPDATES_SCREENSHOTS, Operator

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http
    from tests.support.receiver import Receiver

SAMPLES = """
INSERT INTO status_samples
SELECT date_trunc('minute', now()) - n * interval '1 minute', (4 + 3 * sin(n / 6.0))::bigint, 0,
       0.3 + 0.2 * sin(n / 3.0), (2 + 2 * sin(n / 4.0))::bigint, 1, 0,
       (60 + 20 * sin(n / 9.0))::bigint, (60 + 20 * sin(n / 9.0))::bigint, (60 + 20 * sin(n / 9.0))::bigint,
       now(), 0
  FROM generate_series(1, 58) AS n
    ON CONFLICT DO NOTHING
"""


@pytest.fixture
def user() -> str:
    """A new user."""
    return f"u_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def purchase(http: Http, user: str) -> str:
    """The purchase of a new grant."""
    purchase = f"p_{uuid.uuid4().hex[:12]}"
    assert http.grant(purchase, user_id=user, purchase_id=purchase).status == 200
    return purchase


def test_grant_is_seen_from_the_request_to_the_receiver(operator: Operator, user: str, purchase: str) -> None:
    """T2, T5: its trace by any id, the user's entitlement and the notification about it."""
    operator.visit("trace")
    operator.page.get_by_label("Id", exact=True).fill(purchase)
    operator.page.keyboard.press("Enter")
    operator.sees_state("SENT")
    for stage in ("Change", "Outbox", "Published", "Inbox", "Notification", "Sent"):
        operator.sees(stage, within=".timeline")
    operator.takes_screenshot("trace")
    operator.follows(user)
    operator.sees("EntitlementGranted")
    expect(
        operator.page.locator("table", has_text="EntitlementGranted").get_by_text("SENT", exact=True)
    ).to_be_visible()
    operator.takes_screenshot("user")


def test_receiver_that_is_down_is_found_and_repaired(
    operator: Operator, receiver: Receiver, http: Http, user: str
) -> None:
    """T5, Q2: group, list, dead letter, trace; redrive with a dry run first, and the notification is SENT."""
    receiver.status = 500
    try:
        http.grant(user, user_id=user, purchase_id=user)
        operator.visit("")
        operator.sees("Dead letters wait for a decision")
        operator.takes_screenshot("receiver-down", full_page=False)
        operator.follows("Show the groups")
        operator.sees("could not be sent to the receiver")
        operator.takes_screenshot("dead-letters", full_page=False)
        operator.page.locator("tr", has_text="Notification").get_by_role("link").first.click()
        operator.sees(user)
        operator.takes_screenshot("dead-letter-list", full_page=False)
        operator.page.locator("tr", has_text=user).get_by_role("link").first.click()
        operator.sees(f'"user_id": "{user}"')
        expect(operator.page.locator(".trace-summary .badge")).to_have_text("DEAD LETTER")
        operator.takes_screenshot("dead-letter")
    finally:
        receiver.status = 204
    operator.presses("Redrive")
    operator.acts("Redrive", "the receiver is up again")
    operator.takes_screenshot("redrive", full_page=False)
    operator.presses("Close", within="dialog")
    operator.sees_badge("REDRIVEN")
    operator.traces("purchase_id", user)
    operator.sees_state("SENT")
    operator.sees("the receiver is up again", within=".timeline")


def test_poison_message_is_shown_as_text_and_discarded(operator: Operator, stack: EmbeddedStack) -> None:
    """N5, T5: its bytes are shown, nothing in it is executed, and discarding it records who and why."""
    poison = "<img src=x onerror=\"document.title='poisoned'\">"
    publish(stack, poison.encode())
    operator.visit("dead-letters")
    row = operator.page.locator("tr", has_text="NATS")
    expect(row).to_be_visible()
    row.get_by_role("link").click()
    operator.page.locator("tbody").get_by_role("link").first.click()
    operator.sees("It could not be decoded")
    operator.sees("the message is text, but an event is a protocol buffer")
    operator.sees("A redrive fails in the same way")
    expect(operator.page.get_by_label("Text of the message")).to_have_text(poison)
    operator.takes_screenshot("poison-message", full_page=False)
    operator.presses("Discard")
    operator.acts("Discard", "it comes from another publisher")
    operator.presses("Close", within="dialog")
    operator.sees_badge("DISCARDED")
    operator.sees("it comes from another publisher")
    assert operator.page.title() != "poisoned"


def test_nats_that_is_away_is_named_with_what_still_works(
    operator: Operator, stack: EmbeddedStack, http: Http, user: str
) -> None:
    """T5: the console works without NATS, says what waits, and shows the event SENT when NATS is back."""
    stack.nats.stop()
    try:
        assert http.grant(user, user_id=user, purchase_id=user).status == 200
        operator.visit("")
        operator.sees("NATS is away")
        operator.sees("Grants, revokes and reads.")
        operator.sees("event pending", within=".flow")
        operator.sees("Unknown", within=".tiles")
        operator.takes_screenshot("nats-away", full_page=False)
        operator.traces("purchase_id", user)
        operator.sees_state("PENDING")
    finally:
        stack.nats.start()
    operator.sees_state("SENT")
    operator.visit("")
    operator.sees_card("Flow")
    operator.stops_seeing("NATS is away")


def test_postgresql_that_is_away_is_named_and_the_last_state_stays(operator: Operator, stack: EmbeddedStack) -> None:
    """T5: which part, since when, and what still works; the console recovers by itself."""
    operator.visit("")
    operator.sees_card("Flow")
    stack.postgres.stop()
    try:
        operator.sees("PostgreSQL is away")
        operator.sees("Below is the state of")
        operator.takes_screenshot("postgresql-away", full_page=False)
        expect(operator.page.locator(".live-content.stale")).to_be_visible()
    finally:
        stack.postgres.start()
    operator.stops_seeing("PostgreSQL is away")
    expect(operator.page.locator(".live-content:not(.stale) .flow").first).to_be_visible()


def test_api_that_is_away_is_named(operator: Operator) -> None:
    """T5: the console tells an API that does not respond from servers behind it that do not."""
    operator.visit("")
    operator.sees_card("Flow")
    operator.page.route("**/v1/ops/**", lambda route: route.abort())
    operator.sees("The API does not respond")
    operator.page.unroute("**/v1/ops/**")
    operator.presses("Try now")
    operator.stops_seeing("The API does not respond")


def test_overview_says_that_everything_flows_again(
    operator: Operator, browser: Browser, stack: EmbeddedStack, http: Http
) -> None:
    """T5: after all repairs nothing needs a person, and each worker has reported."""
    for number in range(40):
        http.grant(f"flow-{number}", user_id=f"u_{number}")
    if UPDATES_SCREENSHOTS:
        fill_last_hour(stack)
    operator.visit("")
    operator.sees("Entitlements flow.")
    for worker in ("relay_outbox", "bridge_events", "deliver_notifications", "run_operator_commands"):
        operator.sees(worker, within="table")
    operator.takes_screenshot("overview")
    looks: dict[str, dict[str, Any]] = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": PHONE}}
    for name, settings in looks.items():
        with Operator.open(browser, stack.api_url, **settings) as other:
            other.sign_in(stack.token)
            other.sees("Entitlements flow.")
            other.takes_screenshot(f"overview-{name}", full_page=False)


def fill_last_hour(stack: EmbeddedStack) -> None:
    """Write samples of the hour before this run, so that the pictures show how a used system looks."""
    with psycopg.connect(stack.database_url) as connection:
        connection.execute(SAMPLES)


def publish(stack: EmbeddedStack, payload: bytes) -> None:
    """Publish a message in another thread, because Playwright has an event loop in this one."""
    thread = threading.Thread(target=lambda: asyncio.run(_publish(stack, payload)))
    thread.start()
    thread.join()


async def _publish(stack: EmbeddedStack, payload: bytes) -> None:
    client = await nats.connect(stack.nats_url, inbox_prefix=INBOX_PREFIXES[WORKERS])
    await client.jetstream().publish(declared_parameters()["EventSubject"], payload)
    await client.close()
