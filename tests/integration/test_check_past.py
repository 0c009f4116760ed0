"""K8: a check as of a past time, within the retention of the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.checks import CheckClient, client, write_audit, write_entitlement
from tests.support.client import Client
from tests.support.module_database import database_url
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

__all__ = ["client", "database_url"]

# Months of the audit that exist in these tests, and times in them.
FIRST_MONTH = "2024-01-01T00:00:00.000000Z"
GRANTED, REVOKED, GRANTED_AGAIN = "2024-01-10T00:00:00Z", "2024-02-10T00:00:00Z", "2024-03-10T00:00:00Z"


@pytest.fixture
def history(client: CheckClient, rows: Rows) -> None:
    """A grant, a revocation and the current grant, without times."""
    del client  # it empties the tables
    write_audit(rows, version=1, status="ACTIVE", occurred_at=GRANTED, changed_at=GRANTED)
    write_audit(rows, version=2, status="REVOKED", operation="REVOKE", occurred_at=REVOKED, changed_at=REVOKED)
    write_audit(rows, version=3, status="ACTIVE", occurred_at=GRANTED_AGAIN, changed_at=GRANTED_AGAIN)
    write_entitlement(rows, version=3, updated_at=GRANTED_AGAIN)


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    ("at", "status", "version"),
    [
        ("2024-01-01T00:00:00Z", "NONE", None),
        ("2024-01-09T23:59:59.999999Z", "NONE", None),
        ("2024-01-10T00:00:00Z", "ACTIVE", 1),
        ("2024-02-09T23:59:59.999999Z", "ACTIVE", 1),
        ("2024-02-10T00:00:00Z", "REVOKED", 2),
        ("2024-02-10T01:00:00+01:00", "REVOKED", 2),
        ("2024-03-09T23:59:59.999999Z", "REVOKED", 2),
        ("2024-03-10T00:00:00Z", "ACTIVE", 3),
        ("2025-01-01T00:00:00Z", "ACTIVE", 3),
    ],
)
def test_last_change_until_that_time_decides(client: CheckClient, at: str, status: str, version: int | None) -> None:
    """K8: a change counts from its exact microsecond."""
    checked = client.check(at=at).json
    assert (checked["status"], checked["version"], checked["allowed"]) == (status, version, status == "ACTIVE")


@pytest.mark.usefixtures("history")
def test_result_about_the_past_has_the_same_keys_and_is_not_cached(client: CheckClient) -> None:
    """K8: checked_at is that time, and there is no time to cache and no ETag."""
    etag = client.check().headers["ETag"]
    response = client.check(at="2024-02-15T13:00:00+01:00", headers={"If-None-Match": f"*, {etag}"})
    assert response.body == (
        '{"user_id":"u_123","stock_keeping_unit":"item1","allowed":false,"status":"REVOKED",'
        '"reason":{"code":"REVOKED","message":"revoked at 2024-02-10T00:00:00.000000Z"},"version":2,"starts_at":null,'
        '"expires_at":null,"updated_at":"2024-02-10T00:00:00.000000Z","checked_at":"2024-02-15T12:00:00.000000Z",'
        '"cache_until":null}'
    )
    assert (response.status, response.headers["Cache-Control"]) == (200, "no-store")
    assert "ETag" not in response.headers


@pytest.mark.parametrize("grace", ["0s", "1h"])
@pytest.mark.parametrize("current", [True, False], ids=["current", "audited"])
def test_times_of_the_past_state_decide(
    database_url: str, client: CheckClient, rows: Rows, grace: str, *, current: bool
) -> None:
    """K3, K5, K8: start, end and grace at their exact microsecond, whether the state is the current one or not."""
    del client  # it empties the tables
    times = {"starts_at": "2024-01-20T00:00:00Z", "expires_at": "2024-02-20T00:00:00Z"}
    write_audit(rows, version=1, status="ACTIVE", occurred_at=GRANTED, changed_at=GRANTED, **times)
    write_entitlement(rows, version=1, updated_at=GRANTED, **times)
    if not current:
        write_audit(rows, version=2, status="REVOKED", operation="REVOKE", occurred_at=GRANTED_AGAIN)
        write_entitlement(rows, version=2, status="REVOKED", updated_at=GRANTED_AGAIN, **times)
    expected = {
        "2024-01-19T23:59:59.999999Z": "SCHEDULED",
        "2024-01-20T00:00:00Z": "ACTIVE",
        "2024-02-19T23:59:59.999999Z": "ACTIVE",
        "2024-02-20T00:00:00Z": "EXPIRED" if grace == "0s" else "GRACE",
        "2024-02-20T00:59:59.999999Z": "EXPIRED" if grace == "0s" else "GRACE",
        "2024-02-20T01:00:00Z": "EXPIRED",
    }
    with CheckClient(database_url, ENTITLEMENT_GRACE=grace) as caller:
        assert {at: caller.check(at=at).json["reason"]["code"] for at in expected} == expected


def test_check_as_of_the_time_of_a_change_sees_that_change(client: CheckClient, database_url: str) -> None:
    """K8: the updated_at of every response is a time at which it was true, although its audit row is later."""
    with Client(database_url) as writer:
        changes = [writer.grant("past-1").json, writer.revoke("past-2").json, writer.grant("past-3").json]
    for change in changes:
        checked = client.check(at=change["updated_at"]).json
        assert {name: checked[name] for name in change} == change


def test_audit_row_is_used_until_a_minute_after_its_change(client: CheckClient, rows: Rows) -> None:
    """K8: the row of a change may be written later than the change."""
    write_audit(rows, version=1, status="ACTIVE", occurred_at="2024-01-10T00:00:59Z", changed_at=GRANTED)
    write_audit(rows, version=2, status="REVOKED", operation="REVOKE", occurred_at=REVOKED, changed_at=REVOKED)
    write_entitlement(rows, version=3, updated_at=GRANTED_AGAIN)
    assert client.check(at=GRANTED).json["version"] == 1


def test_refused_operations_are_not_changes(client: CheckClient, rows: Rows) -> None:
    """K8: only applied ones."""
    write_audit(rows, version=1, status="ACTIVE", occurred_at=GRANTED)
    write_audit(rows, outcome="ENTITLEMENT_STATE_CONFLICT", occurred_at="2024-01-11T00:00:00Z")
    write_audit(rows, outcome="IDEMPOTENCY_KEY_CONFLICT", operation="REVOKE", occurred_at="2024-01-12T00:00:00Z")
    write_entitlement(rows, version=2, status="REVOKED", updated_at=REVOKED)
    assert client.check(at="2024-01-13T00:00:00Z").json["version"] == 1


def test_never_granted_item_was_not_granted_in_the_past(client: CheckClient) -> None:
    """K8: 200 for every valid name, as now."""
    assert client.check("unknown", at="2024-02-01T00:00:00Z").json["reason"]["code"] == "NOT_GRANTED"


def test_time_in_the_future_is_refused(client: CheckClient) -> None:
    """K8: by the clock of the database; the message names the time now."""
    response = client.check(at="2999-01-01T00:00:00Z")
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert response.json["message"].startswith("at must not be later than now, 20")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("at", "refusal"),
    [
        ("2024-02-01T00:00:00.000001Z", "at must not be later than now, 2024-02-01T00:00:00.000000Z"),
        ("2024-02-01T00:00:00Z", None),
        (FIRST_MONTH, None),
        (
            "2023-12-31T23:59:59.999999Z",
            f"at must not be earlier than {FIRST_MONTH}, the beginning of the recorded history",
        ),
    ],
)
def test_limits_of_time_are_exact(rows: Rows, at: str, refusal: str | None) -> None:
    """K8: now and the beginning of the audit are allowed, a microsecond beyond them is not."""
    row = rows.execute(
        "SELECT refusal FROM entitlement_at('u', 's', %s::timestamptz, '2024-02-01T00:00:00Z')", (at,)
    ).fetchone()
    assert row == {"refusal": refusal}


def test_time_before_the_audit_is_refused(client: CheckClient) -> None:
    """K8: the message names the beginning of the audit."""
    response = client.check(at="2023-12-31T23:59:59.999999Z")
    assert (response.status, response.json["message"]) == (
        400,
        f"at must not be earlier than {FIRST_MONTH}, the beginning of the recorded history",
    )


def test_change_that_the_audit_has_dropped_is_not_guessed(client: CheckClient, rows: Rows) -> None:
    """K8: before the first change that is left, the state is unknown, unless that change is the first of all."""
    write_audit(rows, version=5, status="REVOKED", operation="REVOKE", occurred_at=REVOKED, changed_at=REVOKED)
    write_entitlement(rows, version=5, status="REVOKED", updated_at=REVOKED)
    assert client.check(at=REVOKED).json["version"] == 5
    response = client.check(at="2024-02-09T23:59:59.999999Z")
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert response.json["message"] == (
        "at must not be earlier than 2024-02-10T00:00:00.000000Z,"
        " the first change in the recorded history of this entitlement"
    )


def test_missing_audit_is_not_guessed(client: CheckClient, rows: Rows) -> None:
    """K8: an entitlement without any row in the audit, as after an import of the table alone."""
    write_entitlement(rows, version=1, updated_at=GRANTED_AGAIN)
    assert client.check(at=GRANTED_AGAIN).json["status"] == "ACTIVE"
    assert client.check(at="2024-02-01T00:00:00Z").status == 400


def test_past_check_takes_one_round_trip(database_url: str, client: CheckClient) -> None:
    """K8: one statement, as the check now."""
    del client  # it makes the audit
    with RoundTrips(database_url) as proxy, CheckClient(proxy.url) as caller:
        caller.check(at=GRANTED)
        caller.check(at=GRANTED)
        before = proxy.count
        caller.check(at=GRANTED)
        assert proxy.since(before) == 1


def test_past_check_needs_no_privilege_on_the_audit(database_url: str, client: CheckClient, rows: Rows) -> None:
    """G3: the role of the functions reads the audit only through the function, which finds no table of its caller."""
    del client  # it empties the tables
    write_audit(rows, version=1, status="ACTIVE", occurred_at=GRANTED)
    write_entitlement(rows, version=2, status="REVOKED", updated_at=REVOKED)
    state: Any = "SELECT (entitlement).version FROM entitlement_at('u_123', 'item1', '2024-01-20Z', now())"
    with psycopg.connect(database_url, autocommit=True) as role:
        role.execute("CREATE TEMPORARY TABLE entitlement_audit AS SELECT 1 AS version")
        assert role.execute(state).fetchall() == [(1,)]
        role.execute("DROP TABLE pg_temp.entitlement_audit")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute("SELECT version FROM entitlement_audit")
