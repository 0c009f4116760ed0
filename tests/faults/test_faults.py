"""W4: each fault that `make fault` makes has its problem in the status, and after the repair the status is OK."""

from __future__ import annotations

import io
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from infra.local.commands.fault import fault
from infra.local.progress import Progress
from infra.local.system.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.command import Grantwire

# These tests wait for workers and for what is late, and run in `make check`.
pytestmark = pytest.mark.timeout(1800)
# A worker is started every minute and works for 63 seconds; a change is late after a minute.
TIMEOUT_SECONDS = 300.0


@pytest.fixture
def run_fault(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make or repair a fault in the stack of the tests, as `make fault` does in that of a checkout."""
    monkeypatch.setattr("infra.local.stack.selection.current_stack", lambda _progress: stack)

    def run(*arguments: str) -> None:
        assert fault(arguments, Progress(io.StringIO())) == 0

    return run


@pytest.fixture
def forget_losses(stack: EmbeddedStack) -> Callable[[], None]:
    """Let an hour pass since the last loss of the stream, after which the status no longer shows it."""

    def forget() -> None:
        with psycopg.connect(stack.database_url, autocommit=True) as owner:
            owner.execute("UPDATE outbox_republications SET put_back_at = put_back_at - interval '2 hours'")
            owner.execute("UPDATE stream_losses SET detected_at = detected_at - interval '2 hours'")

    return forget


def test_every_fault_is_named_and_ends_with_its_repair(
    grantwire: Grantwire, run_fault: Callable[..., None], forget_losses: Callable[[], None]
) -> None:
    """W1, W3, W4: fault, code, repair, OK; changes are accepted meanwhile, and everything arrives in the end."""
    wait_until_ok(grantwire)
    for name, codes in (
        ("nats", {"NATS_UNAVAILABLE"}),
        ("circuit", {"RECEIVER_UNAVAILABLE"}),
        ("consumer", {"EVENTS_UNCONFIRMED"}),
        ("stream", {"STREAM_MISSING"}),
    ):
        run_fault(name)
        try:
            purchases = [grant(grantwire) for _ in range(3)]
            wait_for_codes(grantwire, codes, purchases)
        finally:
            run_fault(name, "--repair")
        if name == "stream":
            wait_for_codes(grantwire, {"STREAM_HISTORY_LOST", "EVENTS_LOST"})
            forget_losses()
        status = wait_until_ok(grantwire)
        assert status["settled"]["age_seconds"] < 60
        for purchase in purchases:
            assert grantwire.result("trace", "--purchase-id", purchase)["changes"][-1]["state"] == "SENT"


def test_database_that_is_away_is_named_by_the_command(grantwire: Grantwire, run_fault: Callable[..., None]) -> None:
    """W4: with what still works; the status is OK after the repair."""
    run_fault("database")
    try:
        exit_code, health = grantwire("status")
        assert (exit_code, health["error"]["code"]) == (3, "DATABASE_UNAVAILABLE")
        assert "Nothing that was confirmed is lost" in health["error"]["hint"]
    finally:
        run_fault("database", "--repair")
    wait_until_ok(grantwire)


def test_broker_that_loses_messages_is_named(
    grantwire: Grantwire, run_fault: Callable[..., None], forget_losses: Callable[[], None]
) -> None:
    """W1, W4: what it lost is published again without a person, and the status shows that for an hour."""
    purchases = [grant(grantwire) for _ in range(5)]
    for purchase in purchases:
        grantwire.wait_for_state(purchase, "SENT", TIMEOUT_SECONDS)
    run_fault("lost")
    found = wait_for_codes(grantwire, {"STREAM_HISTORY_LOST", "EVENTS_LOST"})
    assert found["STREAM_HISTORY_LOST"]["since"]
    forget_losses()
    wait_until_ok(grantwire)


def test_worker_that_does_not_run_is_named(grantwire: Grantwire, run_fault: Callable[..., None]) -> None:
    """W4: its notifications are overdue after a minute, and it is late after four."""
    wait_until_ok(grantwire)
    run_fault("worker")
    try:
        wait_for_codes(grantwire, {"NOTIFICATIONS_OVERDUE"}, [])
        late = wait_for_codes(grantwire, {"WORKER_LATE"}, seconds=600)["WORKER_LATE"]
        assert "deliver_notifications last ran" in late["message"]
    finally:
        run_fault("worker", "--repair")
    wait_until_ok(grantwire)


def grant(grantwire: Grantwire) -> str:
    """Grant an entitlement to a new user, and return the id of the purchase."""
    purchase = f"p_{uuid.uuid4().hex[:12]}"
    arguments = ("--reason", "purchase", "--purchase-id", purchase, "--key", purchase)
    grantwire.result("entitlements", "grant", f"u_{purchase}", "item1", *arguments)
    return purchase


def problems(grantwire: Grantwire) -> dict[str, Any]:
    """Return the problems of the status by code; none if it does not respond."""
    _, health = grantwire("status")
    return {problem["code"]: problem for problem in health["status"]["problems"]} if health["status"] else {}


def wait_for_codes(
    grantwire: Grantwire, codes: set[str], purchases: list[str] | None = None, seconds: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Wait until the status has had each of these problems, and return them.

    With `purchases`, changes go on, because the run of a worker that is switched off lasts up to a minute.
    """
    seen: dict[str, Any] = {}

    def are_seen() -> bool:
        if purchases is not None:
            purchases.append(grant(grantwire))
        seen.update(problems(grantwire))
        return codes <= seen.keys()

    assert wait_for(are_seen, seconds, every=0.5 if purchases is None else 3), (codes, seen)
    assert all(problem["still_works"] and problem["to_do"] for problem in seen.values())
    return seen


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
