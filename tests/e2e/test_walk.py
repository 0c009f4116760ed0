"""T1, T2, T3: the walk of an operator with the command: break it, see it, find the cause, repair it, see it SENT.

docs/local.md (Practise for being on call) describes the same steps, and tests/browser/test_walk.py makes them with the
console.
"""

from __future__ import annotations

import base64
import io
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from infra.local.commands.fault import fault
from infra.local.errors import CommandError
from infra.local.faults.streams import POISON
from infra.local.progress import Progress
from infra.local.system.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.command import Grantwire
    from tests.support.receiver import Receiver

# A worker is started every minute and works for 63 seconds; the first one may have a cold start.
TIMEOUT_SECONDS = 75.0


@pytest.fixture
def user() -> str:
    """A new user, whose purchases have ids that begin with the same text."""
    return f"u_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def break_(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a fault in the stack of the tests, as `make fault` does in that of a checkout."""
    monkeypatch.setattr("infra.local.stack.selection.current_stack", lambda _progress: stack)

    def break_stack(name: str) -> None:
        assert fault([name], Progress(io.StringIO())) == 0

    return break_stack


def test_nats_that_is_away_is_named_with_what_still_works(
    grantwire: Grantwire, stack: EmbeddedStack, break_: Callable[[str], None], user: str
) -> None:
    """T3: the status names it and says what works, changes are accepted, and all is SENT when NATS is back.

    The consumer lag is unknown while NATS is away, and known long before the bridge's run of a minute ends.
    """
    grant(grantwire, user, "item1")
    grantwire.wait_for_state(f"{user}-item1", "SENT", TIMEOUT_SECONDS)
    break_("nats")
    try:
        (found,) = wait_until(lambda: problem(grantwire, "NATS_UNAVAILABLE"))
        stream = grantwire("status")[1]["status"]["stream"]
        assert (stream["consumer_lag"], bool(stream["unknown_since"])) == (None, True)
        started = time.monotonic()
        with pytest.raises(CommandError, match="NATS does not respond"):
            break_("poison")
        assert time.monotonic() - started < 60
        assert "Grants, revokes and reads" in found["still_works"]
        grant(grantwire, user, "item2")
        assert grantwire("entitlements", "check", user, "item2")[0] == 0
        grantwire.wait_for_state(f"{user}-item2", "PENDING", TIMEOUT_SECONDS)
    finally:
        stack.nats.start()
    trace = grantwire.wait_for_state(f"{user}-item2", "SENT", TIMEOUT_SECONDS)
    assert "dead_letter" not in {step["stage"] for step in trace["timeline"]}
    wait_until(lambda: not problem(grantwire, "NATS_UNAVAILABLE"))
    assert grantwire("status")[1]["status"]["stream"]["consumer_lag"] is not None


def test_poison_message_is_found_and_discarded(grantwire: Grantwire, break_: Callable[[str], None]) -> None:
    """N5, T3: groups, list and show have the message; a dry run changes nothing; a discard records who and why."""
    break_("poison")

    def newest() -> Any:
        letters = grantwire.result("dead-letters", "list", "--kind", "nats", "--limit", "1")["dead_letters"]
        shown = grantwire.result("dead-letters", "show", "nats", letters[0]["dead_letter_id"]) if letters else None
        return shown if shown and shown["message"]["base64"] == base64.b64encode(POISON).decode() else None

    letter = wait_until(newest)
    assert (letter["state"], letter["message"]["decoded"], letter["message"]["text"]) == ("OPEN", None, POISON.decode())
    groups = grantwire.result("dead-letters", "groups")["groups"]
    assert ("nats", letter["cause"]) in {(group["kind"], group["cause"]) for group in groups}
    assert problem(grantwire, "DEAD_LETTERS")
    close = ("--kind", "nats", "--id", letter["dead_letter_id"], "--actor", "jane", "--reason", "another publisher")
    dry_run = grantwire.result("dead-letters", "discard", *close, "--dry-run")
    assert (dry_run["would_change"], dry_run["ids"]) == (1, [letter["dead_letter_id"]])
    assert newest()["state"] == "OPEN"
    done = grantwire.result("dead-letters", "discard", *close, "--yes")
    assert (done["status"], done["progress"]["done"]) == ("DONE", 1)
    closed = grantwire.result("dead-letters", "show", "nats", letter["dead_letter_id"])
    assert closed["state"] == "DISCARDED"
    assert {(action["actor"], action["reason"]) for action in closed["actions"]} == {("jane", "another publisher")}


def test_receiver_that_is_down_is_found_and_the_notification_redriven(
    grantwire: Grantwire, receiver: Receiver, user: str
) -> None:
    """Q2, T2, T3: the trace has the response of the receiver; after the repair, a redrive and SENT."""
    receiver.status, receiver.selected = 500, user.encode()
    try:
        grant(grantwire, user, "item1")
        trace = grantwire.wait_for_state(f"{user}-item1", "DEAD_LETTER", TIMEOUT_SECONDS)
    finally:
        receiver.status = 204
    cause = "receiver responded with status 500"
    (failure,) = [step for step in trace["timeline"] if step["stage"] == "dead_letter"]
    assert cause in str(failure)
    selection = ("--kind", "notification", "--user", user)
    (letter,) = grantwire.result("dead-letters", "list", *selection)["dead_letters"]
    assert letter["cause"] == cause
    shown = grantwire.result("dead-letters", "show", "notification", letter["dead_letter_id"])
    assert shown["message"]["decoded"]["user_id"] == user
    redrive = ("dead-letters", "redrive", *selection, "--cause", cause, "--reason", "the receiver is up again")
    assert grantwire.result(*redrive, "--dry-run")["would_change"] == 1
    code, refused = grantwire(*redrive)
    assert (code, "--yes" in str(refused)) == (2, True)
    assert grantwire.result(*redrive, "--yes")["status"] == "DONE"
    trace = grantwire.wait_for_state(f"{user}-item1", "SENT", TIMEOUT_SECONDS)
    assert "the receiver is up again" in str([step for step in trace["timeline"] if step["stage"] == "operator_action"])
    assert grantwire.result("dead-letters", "list", *selection)["dead_letters"] == []


def grant(grantwire: Grantwire, user: str, sku: str) -> None:
    """Grant an entitlement; its purchase id is made of both."""
    granted = grantwire.result(
        "entitlements", "grant", user, sku, "--reason", "purchase", "--purchase-id", f"{user}-{sku}"
    )
    assert granted["status"] == "ACTIVE"


def problem(grantwire: Grantwire, code: str) -> list[Any]:
    """Return the problems of a kind that the status has."""
    exit_code, health = grantwire("status")
    problems = health["status"]["problems"]
    assert exit_code == (5 if problems else 0)
    return [problem for problem in problems if problem["code"] == code]


def wait_until(poll: Callable[[], Any]) -> Any:
    """Wait for a true result and return it."""
    result = wait_for(poll, TIMEOUT_SECONDS, every=0.1)
    assert result, f"no result within {TIMEOUT_SECONDS} s"
    return result
