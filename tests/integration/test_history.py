"""K8: the history of an entitlement."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.checks import CheckClient, client, write_audit
from tests.support.client import Client
from tests.support.module_database import database_url
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

__all__ = ["client", "database_url"]

GRANTED, REVOKED = "2024-01-10T00:00:00Z", "2024-02-10T00:00:00Z"


def versions(page: dict[str, Any]) -> list[int]:
    """Return the versions on a page."""
    return [entry["version"] for entry in page["history"]]


def test_history_has_every_applied_change_newest_first(client: CheckClient, database_url: str) -> None:
    """K8: with time, operation, reason, purchase and caller; refused requests are not part of it."""
    with Client(database_url) as writer:
        granted = writer.grant("h1", reason="gift", purchase_id="p_1").json
        assert writer.grant("h2").status == 409
        assert writer.revoke("h1", reason="other").status == 200
        assert writer.revoke("h1", reason="another").status == 409
        writer.grant("h3", stock_keeping_unit="item2")
    response = client.history()
    body = response.json
    assert list(body) == ["user_id", "stock_keeping_unit", "history"]
    assert versions(body) == [2, 1]
    assert list(body["history"][1].items()) == [
        ("version", 1),
        ("operation", "GRANT"),
        ("status", "ACTIVE"),
        ("occurred_at", granted["updated_at"]),
        ("reason", "gift"),
        ("purchase_id", "p_1"),
        ("caller", "tests"),
    ]
    assert response.headers["Cache-Control"] == "no-store"


def test_times_are_shown_where_they_are_set(client: CheckClient, rows: Rows) -> None:
    """K3, K8: after the change; time events are changes, too."""
    end = "2024-02-10T00:00:00.000000Z"
    write_audit(rows, version=1, status="ACTIVE", occurred_at=GRANTED, purchase_id="p", expires_at=end)
    write_audit(
        rows,
        version=2,
        status="EXPIRED",
        operation="EXPIRE",
        caller="grantwire",
        detail='{"reason": "schedule"}',
        occurred_at="2024-02-10T00:00:00.5Z",
        purchase_id="p",
        starts_at=GRANTED,
        expires_at=end,
    )
    expired, granted = client.history().json["history"]
    assert list(granted)[-1] == "expires_at"
    assert "starts_at" not in granted
    assert expired == {
        "version": 2,
        "operation": "EXPIRE",
        "status": "EXPIRED",
        "occurred_at": "2024-02-10T00:00:00.500000Z",
        "reason": "schedule",
        "purchase_id": "p",
        "caller": "grantwire",
        "starts_at": "2024-01-10T00:00:00.000000Z",
        "expires_at": end,
    }


def test_status_before_the_start_is_that_of_the_response(client: CheckClient, database_url: str, rows: Rows) -> None:
    """K3, K8: SCHEDULED after a grant for later, as in its response and in a check as of that time; then ACTIVE."""
    with Client(database_url) as writer:
        granted = writer.grant("h1", starts_at="2998-01-01T00:00:00Z").json
        assert client.check(at=granted["updated_at"]).json["status"] == "SCHEDULED"
        rows.execute("UPDATE entitlements SET starts_at = now()")
        rows.execute("SELECT expire_due(10, '0', '0', 't', false, '{0,0,0}')")
        writer.revoke("h2")
    listed = [(entry["operation"], entry["status"]) for entry in client.history().json["history"]]
    assert listed == [("REVOKE", "REVOKED"), ("START", "ACTIVE"), ("GRANT", granted["status"])]


def test_never_granted_item_has_an_empty_history(client: CheckClient) -> None:
    """K8: an unknown name is not an error."""
    response = client.history('quote"s', "a/b")
    assert response.body == '{"user_id":"quote\\"s","stock_keeping_unit":"a/b","history":[]}'


def test_history_has_pages_over_months(client: CheckClient, rows: Rows) -> None:
    """K8: each change once, newest first, and next_before only if older ones follow."""
    times = [
        "2024-01-30T00:00:00Z",
        "2024-01-31T23:59:59.999999Z",
        "2024-02-01T00:00:00Z",
        "2024-03-01T00:00:00.000001Z",
    ]
    for number, time in enumerate(times, start=1):
        write_audit(rows, version=number, status="ACTIVE", occurred_at=time)
        write_audit(rows, outcome="ENTITLEMENT_STATE_CONFLICT", occurred_at=time)
    pages: list[list[int]] = []
    before: dict[str, str] = {}
    while True:
        page = client.history(limit="1", **before).json
        pages.append(versions(page))
        if "next_before" not in page:
            break
        before = {"before": page["next_before"]}
    assert pages == [[4], [3], [2], [1]]
    assert versions(client.history(before="2024-02-01T01:00:00+01:00").json) == [2, 1]
    full = client.history(limit="4").json
    assert (versions(full), "next_before" in full) == ([4, 3, 2, 1], False)


def test_order_is_that_of_versions_if_the_clock_steps_back(client: CheckClient, database_url: str, rows: Rows) -> None:
    """E1, K8, W6: each change is on one page, newest first, and the check as of its time sees it.

    Each audit row was written by a clock that was an hour further behind than at the change before.
    """
    with Client(database_url) as writer:
        changes = [writer.grant("b1").json]
        for number in range(4):
            rows.execute("UPDATE entitlement_audit SET occurred_at = occurred_at + interval '1 hour'")
            changes.append((writer.grant if number % 2 else writer.revoke)(f"b{number + 2}").json)
    listed: list[tuple[int, str]] = []
    before: dict[str, str] = {}
    while not listed or before:
        page = client.history(limit="2", **before).json
        listed += [(entry["version"], entry["occurred_at"]) for entry in page["history"]]
        before = {"before": page["next_before"]} if "next_before" in page else {}
    assert listed == [(change["version"], change["updated_at"]) for change in reversed(changes)]
    assert [client.check(at=change["updated_at"]).json["version"] for change in changes] == [1, 2, 3, 4, 5]


def test_page_sizes(client: CheckClient, rows: Rows) -> None:
    """K8: 100 by default and at most 1,000."""
    rows.execute("""
        INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                                       version, status, changed_at, occurred_at)
        SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u_123', 'item1', '{}', n, 'ACTIVE',
               timestamptz '2024-01-10Z' + n * interval '1 second',
               timestamptz '2024-01-10Z' + n * interval '1 second' FROM generate_series(1, 1001) n""")
    assert versions(client.history().json) == list(range(1001, 901, -1))
    largest = client.history(limit="1000").json
    assert versions(largest) == list(range(1001, 1, -1))
    assert versions(client.history(limit="1000", before=largest["next_before"]).json) == [1]


def test_function_returns_a_bounded_number_of_rows(client: CheckClient, database_url: str) -> None:
    """K8: also for a caller with the role of the functions."""
    del client  # it makes the audit
    with (
        psycopg.connect(database_url, autocommit=True) as role,
        pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 1001"),
    ):
        role.execute("SELECT * FROM entitlement_history('u', 's', NULL, 1002)")


def test_history_takes_one_round_trip(database_url: str, client: CheckClient) -> None:
    """K8: one statement."""
    del client  # it makes the audit
    with RoundTrips(database_url) as proxy, CheckClient(proxy.url) as caller:
        caller.history()
        caller.history()
        before = proxy.count
        caller.history()
        assert proxy.since(before) == 1


def test_history_needs_no_privilege_on_the_audit(database_url: str, client: CheckClient, rows: Rows) -> None:
    """G3: the role of the functions reads the audit only through the function, which finds no table of its caller."""
    del client  # it empties the tables
    write_audit(rows, version=1, status="ACTIVE", occurred_at=GRANTED)
    with psycopg.connect(database_url, autocommit=True) as role:
        role.execute("CREATE TEMPORARY TABLE entitlement_audit AS SELECT 1 AS version")
        history = role.execute("SELECT change FROM entitlement_history('u_123', 'item1', NULL, 10)").fetchall()
    assert [json.loads(change)["version"] for (change,) in history] == [1]
