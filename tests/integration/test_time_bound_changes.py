"""K3, K5: grants with a start and an end, extensions, and changes that meet an end that no worker has recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.client import Client
from tests.support.times import events, history, in_hours, pass_time

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

DAY = 24.0


def test_grant_with_times_shows_and_stores_them(client: Client, rows: Rows) -> None:
    """K3, E6: response, entitlement, event and audit row have the same times; a replay has the same bytes."""
    starts_at, expires_at = in_hours(DAY), in_hours(2 * DAY)
    response = client.grant("k1", starts_at=starts_at, expires_at=expires_at)
    assert response.status == 200
    assert response.json["status"] == "SCHEDULED"
    times = {name: datetime.fromisoformat(response.json[name]) for name in ("starts_at", "expires_at")}
    assert times == {
        "starts_at": datetime.fromisoformat(starts_at),
        "expires_at": datetime.fromisoformat(expires_at),
    }
    (entitlement,) = rows.execute("SELECT * FROM entitlements").fetchall()
    assert {name: entitlement[name] for name in times} == times
    assert (entitlement["status"], entitlement["purchase_id"], entitlement["start_pending"]) == (
        "ACTIVE",
        "p_456",
        True,
    )
    (audit,) = rows.execute("SELECT * FROM entitlement_audit").fetchall()
    assert {name: audit[name] for name in times} == times
    (event,) = rows.execute("SELECT payload FROM outbox_events").fetchall()
    assert {name: event["payload"][name] for name in times} == {name: response.json[name] for name in times}
    replay = client.grant("k1", starts_at=starts_at, expires_at=expires_at)
    assert (replay.body, replay.replayed) == (response.body, True)


def test_same_times_in_another_zone_are_the_same_request(client: Client) -> None:
    """I1: a repeat is recognised by the instant; another instant is another request. Null is the same as none."""
    first = client.grant("k1", expires_at="2099-01-01T00:00:00Z", starts_at=None)
    again = client.grant("k1", expires_at="2099-01-01T09:00:00.000+09:00")
    assert (again.replayed, again.body) == (True, first.body)
    assert client.grant("k1", expires_at="2099-01-01T00:00:00.000001Z").code == "IDEMPOTENCY_KEY_CONFLICT"


def test_start_in_the_past_means_now(client: Client, rows: Rows) -> None:
    """K3: the entitlement is ACTIVE, its start is the time of the grant, and no start is recorded later."""
    response = client.grant("k1", starts_at="2020-01-01T00:00:00Z")
    assert (response.json["status"], response.json["starts_at"]) == ("ACTIVE", response.json["updated_at"])
    (entitlement,) = rows.execute("SELECT * FROM entitlements").fetchall()
    assert not entitlement["start_pending"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at must be in the future"),
        ({"expires_at": "2099-01-01T00:00:00"}, "expires_at must be an RFC 3339 time with a zone"),
        ({"expires_at": "tomorrow"}, "expires_at must be an RFC 3339 time with a zone"),
        ({"expires_at": 4070908800}, "expires_at must be a string"),
        ({"starts_at": "1999-12-31T23:59:59Z"}, "starts_at must be in the years 2000 to 9999"),
        (
            {"starts_at": "2099-01-02T00:00:00Z", "expires_at": "2099-01-01T00:00:00Z"},
            "expires_at must be after starts_at",
        ),
        (
            {"starts_at": "2099-01-01T00:00:00Z", "expires_at": "2099-01-01T01:00:00+01:00"},
            "expires_at must be after starts_at",
        ),
        ({"grace": "1d"}, "unknown field 'grace'; allowed: user_id, stock_keeping_unit"),
    ],
)
def test_impossible_times_are_400_and_change_nothing(
    client: Client, rows: Rows, fields: dict[str, object], message: str
) -> None:
    """K3, E5, I3: with the name of the field. Nothing is stored, so the corrected request can use the same key."""
    response = client.grant("k1", **fields)
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert response.json["message"].startswith(message)
    assert rows.execute("SELECT FROM entitlements").fetchall() == []
    assert rows.execute("SELECT FROM idempotency_keys").fetchall() == []
    assert client.grant("k1").status == 200


@pytest.mark.parametrize("field", ["starts_at", "expires_at"])
def test_revoke_has_no_times(client: Client, field: str) -> None:
    """E3: the body of a revoke stays as it was."""
    client.grant("k1", expires_at=in_hours(1))
    refused = client.revoke("k2", **{field: in_hours(1)})
    assert (refused.status, refused.code) == (400, "BAD_REQUEST")
    assert client.revoke("k2").json.keys() == {"user_id", "stock_keeping_unit", "status", "version", "updated_at"}


def test_repeat_after_the_end_gets_the_stored_response(client: Client, rows: Rows) -> None:
    """I1, K3: the end of the request is in the past by then, but the request is not new."""
    expires_at = (datetime.now(UTC) + timedelta(milliseconds=400)).isoformat()
    first = client.grant("k1", expires_at=expires_at)
    assert first.status == 200
    rows.execute("SELECT pg_sleep_until(%s)", (expires_at,))
    again = client.grant("k1", expires_at=expires_at)
    assert (again.body, again.replayed) == (first.body, True)
    assert client.grant("k2", expires_at=expires_at).json["message"] == "expires_at must be in the future"


def test_grant_of_a_scheduled_entitlement_is_refused(client: Client) -> None:
    """E5: with its own message; a revoke cancels it."""
    client.grant("k1", starts_at=in_hours(1))
    assert client.grant("k2").json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already SCHEDULED"}
    assert client.revoke("k3").json["status"] == "REVOKED"


def test_grant_that_is_refused_while_the_end_comes(client: Client, rows: Rows, database_url: str) -> None:
    """K3, K4, W5: a change reads the clock once. A refusal is final for its key, so it must not say EXPIRED."""
    client.grant("k1", expires_at=in_hours(1))
    # A clock that has passed the end from its second reading on.
    rows.execute("CREATE SEQUENCE ticks")
    rows.execute("""
        CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE SECURITY DEFINER
        RETURN pg_catalog.clock_timestamp() + CASE WHEN nextval('ticks') > 1 THEN interval '2 hours' ELSE '0' END""")
    with psycopg.connect(database_url, autocommit=True) as session:
        session.execute("SET search_path = public, pg_catalog")
        refused = session.execute("""
            SELECT refusal FROM entitlement_transition(
                jsonb_populate_record(NULL::entitlement_change, '{"operation": "GRANT", "user_id": "u_123",
                                      "stock_keeping_unit": "item1", "purchase_id": "p", "trace_id": "t"}'),
                '0', '0')""").fetchone()
    (clock,) = rows.execute("SELECT last_value AS readings, is_called FROM ticks").fetchall()
    assert (clock["readings"], clock["is_called"]) == (1, True)
    assert refused == ("already ACTIVE",)


def test_late_renewal_records_the_end_first(client: Client, rows: Rows) -> None:
    """K4: a grant after the end succeeds; start, end and grant are three versions, with events and audit rows."""
    client.grant("k1", starts_at=in_hours(1), expires_at=in_hours(2))
    pass_time(rows, 3)
    renewed = client.grant("k2", expires_at=in_hours(1))
    assert (renewed.status, renewed.json["version"], renewed.json["status"]) == (200, 4, "ACTIVE")
    assert history(rows) == [
        ("GRANT", 1, "ACTIVE"),
        ("START", 2, "ACTIVE"),
        ("EXPIRE", 3, "EXPIRED"),
        ("GRANT", 4, "ACTIVE"),
    ]
    assert [event for event, _ in events(rows)] == [
        "EntitlementGranted",
        "EntitlementStarted",
        "EntitlementExpired",
        "EntitlementGranted",
    ]
    recorded = rows.execute("SELECT caller, purchase_id, detail FROM entitlement_audit WHERE operation = 'EXPIRE'")
    assert recorded.fetchall() == [{"caller": "grantwire", "purchase_id": "p_456", "detail": {"reason": "schedule"}}]


def test_revoke_and_extension_after_the_end_are_refused_and_record_it(client: Client, rows: Rows) -> None:
    """K4, E6: the refusal does not roll back the recorded end, and the second request does not record it again."""
    client.grant("k1", expires_at=in_hours(1))
    pass_time(rows, 2)
    assert client.revoke("k2").json["message"] == "already EXPIRED"
    assert client.extend("k3", in_hours(5)).json["message"] == "already EXPIRED"
    assert history(rows) == [("GRANT", 1, "ACTIVE"), ("EXPIRE", 2, "EXPIRED")]


def test_extension_moves_and_removes_the_end(client: Client, rows: Rows) -> None:
    """K5: later, earlier, none; each is a version, an event with the new end, and an audit row."""
    client.grant("k1", expires_at=in_hours(1))
    later = client.extend("k2", in_hours(5), purchase_id="p_2")
    assert (later.status, later.json["version"], later.json["status"]) == (200, 2, "ACTIVE")
    earlier = client.extend("k3", in_hours(2))
    assert datetime.fromisoformat(earlier.json["expires_at"]) < datetime.fromisoformat(later.json["expires_at"])
    removed = client.extend("k4", None)
    assert "expires_at" not in removed.json
    listed = rows.execute("SELECT payload FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [row["payload"].get("expires_at") for row in listed[1:]] == [
        later.json["expires_at"],
        earlier.json["expires_at"],
        None,
    ]
    assert events(rows)[1:] == [("EntitlementExtended", 2), ("EntitlementExtended", 3), ("EntitlementExtended", 4)]
    assert client.extend("k2", later.json["expires_at"], purchase_id="p_2").replayed


def test_extension_of_a_scheduled_entitlement(client: Client) -> None:
    """K5: it stays SCHEDULED; an end before its start is refused, and so is one at its start."""
    starts_at = client.grant("k1", starts_at=in_hours(5), expires_at=in_hours(6)).json["starts_at"]
    assert client.extend("k2", in_hours(7)).json["status"] == "SCHEDULED"
    for end in (in_hours(4), starts_at):
        refused = client.extend(f"end at {end}", end)
        assert (refused.status, refused.code) == (409, "ENTITLEMENT_STATE_CONFLICT")
        assert refused.json["message"] == f"starts at {starts_at}, so it cannot end earlier"


def test_extension_conflicts(client: Client) -> None:
    """K5: not granted, revoked, the same end, no end."""
    assert client.extend("k1", in_hours(1)).json["message"] == "not granted"
    client.grant("k2")
    assert client.extend("k3", None).json["message"] == "already has no end"
    extended = client.extend("k4", in_hours(1))
    same = extended.json["expires_at"]
    assert client.extend("k5", same).json["message"] == f"already ends at {same}"
    client.revoke("k6")
    assert client.extend("k7", in_hours(1)).json["message"] == "already REVOKED"


@pytest.mark.parametrize("value", ["2020-01-01T00:00:00Z", "never", 5, True])
def test_extension_to_an_impossible_end_is_400(client: Client, value: object) -> None:
    """K5, E5: an extension must have a future end or null; a missing field is named."""
    client.grant("k1")
    response = client.extend("k2", value)  # type: ignore[arg-type]
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert response.json["message"].startswith("expires_at must be")
    assert client.change("/v1/entitlements/extensions", "k3").json["message"] == "expires_at is missing"


def test_grace_keeps_an_entitlement_until_it_ends(database_url: str, rows: Rows) -> None:
    """K5: during the grace a grant is refused and an extension succeeds; at expires_at plus grace it has ended."""
    with Client(database_url, ENTITLEMENT_GRACE="3h") as client:
        client.grant("k1", expires_at=in_hours(1))
        pass_time(rows, 3)
        assert client.grant("k2").json["message"] == "already ACTIVE"
        assert client.extend("k3", in_hours(1)).status == 200
        pass_time(rows, 5)
        assert client.extend("k4", in_hours(1)).json["message"] == "already EXPIRED"
        assert client.grant("k5").json["version"] == 4


def test_grant_without_times_removes_those_of_the_last_one(client: Client, rows: Rows) -> None:
    """K3: a new grant sets both times."""
    client.grant("k1", starts_at=in_hours(1), expires_at=in_hours(9))
    client.revoke("k2")
    assert client.grant("k3").json.keys() == {"user_id", "stock_keeping_unit", "status", "version", "updated_at"}
    (row,) = rows.execute("SELECT starts_at, expires_at, start_pending, expiring_pending FROM entitlements").fetchall()
    assert row == {"starts_at": None, "expires_at": None, "start_pending": False, "expiring_pending": False}
