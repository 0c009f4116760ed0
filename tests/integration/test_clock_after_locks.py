"""W5: a change that waits for a lock is decided by the time after the wait, so nothing contradicts its response."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_batch_concurrency import HOLD_ROW, holding
from tests.integration.test_lock_order import HOLD_PAIR, WAITING
from tests.support.checks import CheckClient
from tests.support.client import Client, item
from tests.support.clock import Clock
from tests.support.feed import FeedClient
from tests.support.times import history, in_hours, run_expiry
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import Rows

# The deadline of a batch must not pass when the clock does.
PATIENT = {"IDEMPOTENCY_LOCK_WAIT": "15s", "DATABASE_STATEMENT_TIMEOUT": "15m"}
SOON, LATER = 0.05, 0.06
HOLD_LAST_EVENT = "SELECT FROM outbox_events WHERE aggregate_key = %s FOR UPDATE"


@pytest.fixture
def clock(rows: Rows) -> Clock:
    """The clock of the database, for connections that are opened later."""
    return Clock(rows)


def change(client: Client, operation: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Send a single change; return its status code and its response."""
    response = client.extend("k1", **fields) if operation == "extend" else client.grant("k1", **fields)
    return response.status, response.json


def change_in_batch(client: Client, operation: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Send a change as the only item of a batch; return its status code and its response."""
    (result,) = client.batch(item("k1", operation, **fields)).json["results"]
    return result["status_code"], result["response"]


@pytest.mark.parametrize("send", [change, change_in_batch])
@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
def test_start_that_passes_during_the_wait_is_now(
    database_url: str,
    owner_url: str,
    rows: Rows,
    clock: Clock,
    send: Callable[..., tuple[int, dict[str, Any]]],
    *,
    exists: bool,
) -> None:
    """W5, K3: the response is ACTIVE from its updated_at, and so are history, feed and check of that version."""
    with Client(database_url, **PATIENT) as client, ThreadPoolExecutor(1) as pool:
        if exists:
            client.grant("g", user_id="u_123")
            client.revoke("r", user_id="u_123")
        with holding(owner_url, HOLD_ROW if exists else HOLD_PAIR, ("u_123",)):
            running = pool.submit(send, client, "grant", starts_at=in_hours(SOON))
            until("it waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
            clock.pass_time(LATER)
        status, response = running.result(timeout=30)
    assert (status, response["status"]) == (200, "ACTIVE")
    assert response["starts_at"] == response["updated_at"]
    with CheckClient(database_url) as reader, FeedClient(database_url) as feed:
        (newest, *_) = reader.history().json["history"]
        checked = reader.check().json
        changes, _ = feed.follow(None, response["version"])
    seen = [newest, checked, changes[-1]]
    assert [(each["version"], each["status"]) for each in seen] == [(response["version"], "ACTIVE")] * 3
    assert not rows.execute("SELECT FROM entitlements WHERE start_pending").fetchall()


@pytest.mark.parametrize("send", [change, change_in_batch])
@pytest.mark.parametrize("operation", ["grant", "extend"])
def test_end_that_passes_during_the_wait_is_refused(
    database_url: str,
    owner_url: str,
    rows: Rows,
    clock: Clock,
    send: Callable[..., tuple[int, dict[str, Any]]],
    operation: str,
) -> None:
    """W5, K3, K5: an end in the past is never applied, and nothing is stored."""
    with Client(database_url, **PATIENT) as client, ThreadPoolExecutor(1) as pool:
        client.grant("g", user_id="u_123")
        if operation == "grant":
            client.revoke("r", user_id="u_123")
        before = history(rows)
        with holding(owner_url, HOLD_ROW, ("u_123",)):
            running = pool.submit(send, client, operation, expires_at=in_hours(SOON))
            until("it waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
            clock.pass_time(LATER)
        status, response = running.result(timeout=30)
    assert (status, response["message"]) == (400, "expires_at must be in the future")
    assert history(rows) == before
    assert not rows.execute("SELECT FROM idempotency_keys WHERE idempotency_key = 'k1'").fetchall()


def test_end_that_passes_while_expiry_waits_is_recorded(
    database_url: str, owner_url: str, rows: Rows, clock: Clock
) -> None:
    """W5, K4: the worker locks what is due, waits for the last event, and records by the time after the wait."""
    with Client(database_url, **PATIENT) as client:
        client.grant("k1", user_id="u_123", starts_at=in_hours(1), expires_at=in_hours(3))
    clock.pass_time(2)
    with ThreadPoolExecutor(1) as pool:
        with holding(owner_url, HOLD_LAST_EVENT, ("u_123/item1",)):
            running = pool.submit(run_expiry, database_url, **PATIENT)
            until("it waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
            clock.pass_time(2)
        recorded = running.result(timeout=30)
    assert (recorded["started"], recorded["expired"]) == (1, 1)
    # In one transaction: the end was not left to the next one.
    transactions = rows.execute("SELECT DISTINCT transaction_id FROM entitlement_audit WHERE version > 1").fetchall()
    assert len(transactions) == 1
    assert history(rows) == [("GRANT", 1, "ACTIVE"), ("START", 2, "ACTIVE"), ("EXPIRE", 3, "EXPIRED")]
    ended = rows.execute("SELECT FROM entitlement_audit WHERE version = 3 AND changed_at >= expires_at")
    assert ended.rowcount == 1
