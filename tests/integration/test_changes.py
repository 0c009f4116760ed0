"""E1-E7: what a grant and a revoke do, and what they refuse."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from grantwire.observability import key_fingerprint
from tests.support.client import Client
from tests.support.concurrency import at_once

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


def test_a_grant_writes_right_event_audit_row_and_answer_together(client: Client, rows: Rows) -> None:
    """E2, E6, O1, A1: one call leaves one row of each, and they agree."""
    before = datetime.now(UTC)
    reply = client.grant("k1")

    assert reply.status == 200
    assert not reply.replayed
    assert reply.json == {
        "user_id": "u_123",
        "stock_keeping_unit": "item1",
        "status": "ACTIVE",
        "version": 1,
        "updated_at": reply.json["updated_at"],
    }
    assert reply.json["updated_at"].endswith("Z")
    (right,) = rows.execute("SELECT * FROM entitlements").fetchall()
    assert before <= right["updated_at"] == datetime.fromisoformat(reply.json["updated_at"])

    (stored,) = rows.execute("SELECT * FROM idempotency_keys").fetchall()
    assert (stored["caller"], stored["route"]) == ("tests", "POST /v1/entitlements/grants")
    assert (stored["status_code"], stored["response_body"]) == (200, reply.body)

    (event,) = rows.execute("SELECT * FROM outbox_events").fetchall()
    assert (event["event_type"], event["aggregate_key"], event["aggregate_version"]) == (
        "EntitlementGranted",
        "u_123/item1",
        1,
    )
    assert (event["status"], event["ready"], event["attempt_count"]) == ("PENDING", True, 0)
    assert event["payload"] == {
        "event_id": str(event["event_id"]),
        "event_type": "EntitlementGranted",
        "occurred_at": reply.json["updated_at"],
        "user_id": "u_123",
        "stock_keeping_unit": "item1",
        "source": "purchase",
        "source_id": "p_456",
        "version": 1,
    }

    (audit,) = rows.execute("SELECT * FROM entitlement_audit").fetchall()
    assert (audit["operation"], audit["outcome"], audit["caller"]) == ("GRANT", "APPLIED", "tests")
    assert audit["operation_id"] == event["event_id"]
    assert audit["trace_id"] == event["trace_id"]
    assert audit["detail"] == {
        "reason": "purchase",
        "purchase_id": "p_456",
        "version": 1,
        "key_fingerprint": key_fingerprint("k1"),
    }


def test_versions_grow_by_one_with_every_change(client: Client, rows: Rows) -> None:
    """E1, E3: grant, revoke, grant again; refusals in between change nothing."""
    assert client.grant("k1").json["version"] == 1
    assert client.grant("k2").code == "ENTITLEMENT_STATE_CONFLICT"
    revoked = client.revoke("k3")
    assert (revoked.status, revoked.json["status"], revoked.json["version"]) == (200, "REVOKED", 2)
    assert client.revoke("k4").json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already REVOKED"}
    assert client.grant("k5").json["version"] == 3
    assert [
        (row["aggregate_version"], row["event_type"], row["ready"])
        for row in rows.execute("SELECT * FROM outbox_events ORDER BY aggregate_version")
    ] == [(1, "EntitlementGranted", True), (2, "EntitlementRevoked", False), (3, "EntitlementGranted", False)]


def test_refusals_by_state_have_their_own_words(client: Client, rows: Rows) -> None:
    """E5: the message tells which of the three it was; refusals are audited too (A1)."""
    assert client.revoke("k0").json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "not granted"}
    client.grant("k1")
    again = client.grant("k2")
    assert again.status == 409
    assert again.json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already ACTIVE"}
    assert [
        (row["operation"], row["outcome"], row["detail"].get("refusal"))
        for row in rows.execute("SELECT * FROM entitlement_audit ORDER BY occurred_at")
    ] == [
        ("REVOKE", "ENTITLEMENT_STATE_CONFLICT", "not granted"),
        ("GRANT", "APPLIED", None),
        ("GRANT", "ENTITLEMENT_STATE_CONFLICT", "already ACTIVE"),
    ]
    assert _count(rows, "outbox_events") == 1


def test_updated_at_never_runs_backwards(client: Client, rows: Rows) -> None:
    """E1: even after a right that was changed in the future of this server's clock."""
    client.grant("k1")
    rows.execute("UPDATE entitlements SET updated_at = now() + interval '1 hour'")
    (future,) = rows.execute("SELECT updated_at FROM entitlements").fetchall()
    reply = client.revoke("k2")
    moved = datetime.fromisoformat(reply.json["updated_at"]) - future["updated_at"]
    assert moved.total_seconds() == 0.000001


def test_names_that_look_alike_when_joined_stay_apart(client: Client, rows: Rows) -> None:
    """O8: the aggregate's name is unambiguous, whatever the names contain."""
    pairs = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("ü", "日本/語")]
    for number, (user_id, sku) in enumerate(pairs):
        assert client.grant(f"k{number}", user_id=user_id, stock_keeping_unit=sku).status == 200
    (row,) = rows.execute("SELECT count(DISTINCT aggregate_key) AS n FROM outbox_events").fetchall()
    assert row["n"] == len(pairs)


def test_text_comes_back_as_it_was_sent(client: Client, rows: Rows) -> None:
    """JSON made in SQL quotes what JSON needs quoted, and keeps every other character."""
    user = 'quote " backslash \\ emoji 🎁 ﷽ <b>'
    reply = client.grant("k1", user_id=user, reason="naïve ☕")
    assert reply.json["user_id"] == user
    assert client.rights(user).json["user_id"] == user
    (event,) = rows.execute("SELECT payload FROM outbox_events").fetchall()
    assert event["payload"]["source"] == "naïve ☕"


def test_of_fifty_rival_grants_one_wins(database_url: str, rows: Rows) -> None:
    """E7: 50 different keys at once for a right that does not exist yet."""
    replies = at_once(50, lambda number: _grant(database_url, f"rival-{number}"))
    assert sorted(reply.status for reply in replies) == [200] + [409] * 49
    assert {reply.json["message"] for reply in replies if reply.status == 409} == {"already ACTIVE"}
    (right,) = rows.execute("SELECT version FROM entitlements").fetchall()
    assert right["version"] == 1
    assert _count(rows, "outbox_events") == 1
    assert _count(rows, "entitlement_audit") == 50


def test_rival_grants_and_revokes_leave_no_gap_and_no_step_back(database_url: str, rows: Rows) -> None:
    """E1, E7: whatever the order, versions count 1, 2, 3 ... and time moves forward with them."""

    def churn(worker: int) -> int:
        with Client(database_url) as client:
            replies = [(client.grant if step % 2 else client.revoke)(f"{worker}-{step}") for step in range(20)]
        return sum(reply.status == 200 for reply in replies)

    with ThreadPoolExecutor(8) as pool:
        applied = sum(pool.map(churn, range(8)))
    events = rows.execute("SELECT * FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [event["aggregate_version"] for event in events] == list(range(1, applied + 1))
    times = [event["payload"]["occurred_at"] for event in events]
    assert times == sorted(set(times))
    assert [event["event_type"] for event in events[:2]] == ["EntitlementGranted", "EntitlementRevoked"]
    assert [event["ready"] for event in events] == [True] + [False] * (applied - 1)


def test_an_error_in_the_last_step_leaves_nothing_behind(client: Client, rows: Rows) -> None:
    """E6: all or nothing, also when the event cannot be written."""
    rows.execute("ALTER TABLE outbox_events ADD CONSTRAINT broken CHECK (aggregate_key <> 'u_123/item1')")
    reply = client.grant("k1")
    assert (reply.status, reply.code) == (500, "INTERNAL")
    assert "constraint" not in reply.body
    for table in ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys"):
        assert _count(rows, table) == 0
    rows.execute("ALTER TABLE outbox_events DROP CONSTRAINT broken")
    assert client.grant("k1").status == 200


def _grant(database_url: str, key: str, **fields: Any) -> Any:
    with Client(database_url) as client:
        return client.grant(key, **fields)


def _count(rows: Rows, table: str) -> int:
    return int(rows.execute(f"SELECT count(*) AS n FROM {table}").fetchall()[0]["n"])  # noqa: S608


def test_each_operation_has_an_identifier_that_sorts_by_time(client: Client, rows: Rows) -> None:
    """Event ids are UUIDs of version 7."""
    for number in range(3):
        client.grant(f"k{number}", user_id=f"u{number}")
    ids = [row["event_id"] for row in rows.execute("SELECT event_id FROM outbox_events ORDER BY created_at")]
    assert all(isinstance(one, uuid.UUID) and one.version == 7 for one in ids)
