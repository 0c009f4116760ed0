"""W4: each fault that `make fault` makes has its problems in the status, and after the repair the status is OK.

The command reads the status over HTTP, and a person sees the same problems in the console. Faults that do not disturb
each other are made at the same time: a worker is started every minute, and is late after four.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from infra.local.commands.fault import FAULTS
from infra.local.system.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.browser.operators import Operator
    from tests.e2e.command import Grantwire

# These tests wait for workers and for what is late, and run only by name.
pytestmark = pytest.mark.timeout(1800)
# A worker is started every minute and works for 63 seconds; a change is late after a minute, a worker after four.
TIMEOUT_SECONDS = 420.0

TOGETHER = (
    *("worker", "consumer", "too-old", "transaction", "privilege", "failure", "lease", "schema", "read-model"),
    *("partitions", "client", "unchecked", "relay"),
)
OF_MESSAGES = ("circuit", "poison", "command", "receiver")
OF_SERVERS = ("nats", "stream", "lost", "database")


def test_faults_of_privileges_rows_schedules_and_the_consumer(
    grantwire: Grantwire,
    run_fault: Callable[..., None],
    forget_losses: Callable[[], None],
    console: Operator | None,
) -> None:
    """W1, W3, W4, T10: twelve faults at the same time, and then the relay; everything arrives after the repair."""
    wait_until_ok(grantwire)
    purchases = [grant(grantwire) for _ in range(3)]
    grantwire.wait_for_state(purchases[-1], "SENT", TIMEOUT_SECONDS)
    first, *others, last = TOGETHER
    made = [first]
    run_fault(first)
    try:
        # Changes go on until the current run of delivery has ended, so that a notification waits.
        wait_for_codes(grantwire, {"NOTIFICATIONS_OVERDUE"}, purchases)
        for name in others:
            if name == "partitions":  # the checks that were started have found what they shall find
                wait_for_codes(grantwire, {"EVENTS_TOO_OLD", "READ_MODEL_DIFFERS"})
            made.append(name)
            run_fault(name)
        purchases.append(grant(grantwire, "--expires", "5s"))
        expected = codes_of(made) - {"WORKER_LATE", "EVENTS_UNCHECKED"}
        found = wait_for_codes(grantwire, expected)
        assert "permission denied" in found["WORKER_DEGRADED"]["last_error"]
        assert found["CONSUMER_LAG"]["since"]
        sees(console, expected)
        made.append(last)
        run_fault(last)
        wait_for_codes(grantwire, {"EVENTS_OLD"}, purchases)
        wait_for_codes(grantwire, {"WORKER_LATE", "EVENTS_UNCHECKED"})
        sees(console, {"WORKER_LATE", "EVENTS_UNCHECKED", "EVENTS_OLD"})
    finally:
        for name in reversed(made):
            run_fault(name, "--repair")
    for purchase in purchases[:-1]:
        grantwire.wait_for_state(purchase, "SENT", TIMEOUT_SECONDS)
    forget_losses()
    assert wait_until_ok(grantwire)["settled"]["age_seconds"] < 60
    sees_ok(console)


def test_faults_of_the_receiver_and_of_messages(
    grantwire: Grantwire, run_fault: Callable[..., None], console: Operator | None
) -> None:
    """W4: notifications behind an open circuit wait; dead letters, and a command that failed, need a person."""
    wait_until_ok(grantwire)
    *waiting, receiver = OF_MESSAGES
    for name in waiting:
        run_fault(name)
    purchases = [grant(grantwire) for _ in range(3)]
    try:
        expected = codes_of(waiting)
        wait_for_codes(grantwire, expected)
        sees(console, expected)
    finally:
        run_fault("circuit", "--repair")
        run_fault("command", "--repair")
    (letter,) = grantwire.result("dead-letters", "list", "--kind", "nats")["dead_letters"]
    run_command(grantwire, "discard", "--kind", "nats", "--id", letter["dead_letter_id"])
    for purchase in purchases:
        grantwire.wait_for_state(purchase, "SENT", TIMEOUT_SECONDS)
    wait_until_ok(grantwire)

    run_fault(receiver)
    try:
        purchase = grant(grantwire)
        found = wait_for_codes(grantwire, codes_of([receiver]))
        assert found["DEAD_LETTERS"]["last_error"]
        sees(console, codes_of([receiver]))
    finally:
        run_fault(receiver, "--repair")
    run_command(grantwire, "redrive", "--kind", "notification", "--all")
    grantwire.wait_for_state(purchase, "SENT", TIMEOUT_SECONDS)
    wait_until_ok(grantwire)
    sees_ok(console)


def test_faults_of_the_servers(
    grantwire: Grantwire,
    run_fault: Callable[..., None],
    forget_losses: Callable[[], None],
    console: Operator | None,
) -> None:
    """W1, W4: NATS stops, loses its stream and its messages; PostgreSQL stops. Changes arrive after the repair."""
    wait_until_ok(grantwire)
    *servers, lost, database = OF_SERVERS
    for name in servers:
        run_fault(name)
        try:
            purchases = [grant(grantwire) for _ in range(3)]
            wait_for_codes(grantwire, codes_of([name]), purchases)
            sees(console, codes_of([name]))
        finally:
            run_fault(name, "--repair")
        if name == "stream":
            wait_for_codes(grantwire, {"STREAM_HISTORY_LOST", "EVENTS_LOST"})
            forget_losses()
        for purchase in purchases:
            grantwire.wait_for_state(purchase, "SENT", TIMEOUT_SECONDS)
        wait_until_ok(grantwire)

    run_fault(lost)
    found = wait_for_codes(grantwire, codes_of([lost]))
    assert found["STREAM_HISTORY_LOST"]["since"]
    sees(console, codes_of([lost]))
    forget_losses()
    wait_until_ok(grantwire)

    run_fault(database)
    try:
        exit_code, health = grantwire("status")
        assert (exit_code, health["error"]["code"]) == (3, "DATABASE_UNAVAILABLE")
        assert "Nothing that was confirmed is lost" in health["error"]["hint"]
        if console is not None:
            console.sees("PostgreSQL is away")
            expect(console.page.locator(".headline")).to_be_hidden()
    finally:
        run_fault(database, "--repair")
    wait_until_ok(grantwire)
    sees_ok(console)


def codes_of(names: Iterable[str]) -> set[str]:
    """Return the problems that these faults cause, according to `make fault`."""
    return {code for name in names for code in FAULTS[name].codes}


def grant(grantwire: Grantwire, *options: str) -> str:
    """Grant an entitlement to a new user, and return the id of the purchase."""
    purchase = f"p_{uuid.uuid4().hex[:12]}"
    arguments = ("--reason", "purchase", "--purchase-id", purchase, "--key", purchase, *options)
    grantwire.result("entitlements", "grant", f"u_{purchase}", "item1", *arguments)
    return purchase


def run_command(grantwire: Grantwire, action: str, *selection: str) -> None:
    """Redrive or discard dead letters, and wait until that is done."""
    grantwire.result("dead-letters", action, *selection, "--reason", "practice", "--yes")


def problems(grantwire: Grantwire) -> dict[str, Any]:
    """Return the problems of the status by code; none if it does not respond."""
    _, health = grantwire("status")
    return {problem["code"]: problem for problem in health["status"]["problems"]} if health["status"] else {}


def wait_for_codes(grantwire: Grantwire, codes: set[str], purchases: list[str] | None = None) -> dict[str, Any]:
    """Wait until the status has had each of these problems, and return them.

    With `purchases`, changes go on, because the run of a worker that is switched off lasts up to a minute.
    """
    seen: dict[str, Any] = {}

    def are_seen() -> bool:
        if purchases is not None:
            purchases.insert(0, grant(grantwire))
        seen.update(problems(grantwire))
        return codes <= seen.keys()

    assert wait_for(are_seen, TIMEOUT_SECONDS, every=1 if purchases is None else 3), (codes - seen.keys(), seen)
    assert all(problem["still_works"] and problem["to_do"] for problem in seen.values())
    return seen


def sees(console: Operator | None, codes: set[str]) -> None:
    """Wait until a person sees each of these problems in the console, with what still works and what to do."""
    if console is None:
        return
    for code in sorted(codes):
        problem = console.page.locator(f'.problems li[data-code="{code}"]')
        expect(problem).to_contain_text("Still works")
        expect(problem).to_contain_text("What to do")
    expect(console.page.locator(".headline")).to_contain_text("attention")


def sees_ok(console: Operator | None) -> None:
    """Wait until the console says that nothing needs a person."""
    if console is not None:
        expect(console.page.locator(".headline")).to_contain_text("Nothing needs a person")


def wait_until_ok(grantwire: Grantwire) -> Any:
    """Wait until the status is OK, with exit code 0, and return it."""
    last: dict[str, Any] = {}

    def is_ok() -> bool:
        exit_code, health = grantwire("status")
        last.update(health)
        assert (exit_code == 0) == (health["status"] is not None and health["status"]["state"] == "OK")
        return exit_code == 0

    assert wait_for(is_ok, TIMEOUT_SECONDS, every=0.5), last["status"] or last
    return last["status"]
