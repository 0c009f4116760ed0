"""E1-E7: the effects of a grant and a revoke, and their state conflicts."""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.observability import key_fingerprint
from tests.support.client import CHANGE, GRANTS, REVOKES, Client
from tests.support.client import event as api_event
from tests.support.concurrency import run_concurrently
from tests.support.times import in_hours, run_expiry
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import Rows


def test_grant_writes_entitlement_event_audit_row_and_stored_response(client: Client, rows: Rows) -> None:
    """E2, E6, O1, A1: one request writes one row of each, and they agree."""
    before = datetime.now(UTC)
    response = client.grant("k1")

    assert response.status == 200
    assert not response.replayed
    assert response.json == {
        "user_id": "u_123",
        "stock_keeping_unit": "item1",
        "status": "ACTIVE",
        "version": 1,
        "updated_at": response.json["updated_at"],
    }
    assert response.json["updated_at"].endswith("Z")
    (entitlement,) = rows.execute("SELECT * FROM entitlements").fetchall()
    assert before <= entitlement["updated_at"] == datetime.fromisoformat(response.json["updated_at"])

    (stored,) = rows.execute("SELECT * FROM idempotency_keys").fetchall()
    assert (stored["caller"], stored["route"]) == ("tests", "POST /v1/entitlements/grants")
    assert (stored["status_code"], stored["response_body"]) == (200, response.body)

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
        "occurred_at": response.json["updated_at"],
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
    assert audit["detail"] == {"reason": "purchase", "key_fingerprint": key_fingerprint("k1")}
    assert (audit["version"], audit["status"], audit["purchase_id"]) == (1, "ACTIVE", "p_456")


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::1", "not an address", None])
def test_source_address_and_transaction_are_audited(client: Client, rows: Rows, address: str | None) -> None:
    """G7: for applied and refused operations of both routes; an unknown address is NULL."""
    for key, route in (("k1", GRANTS), ("k2", GRANTS), ("k3", REVOKES), ("k4", REVOKES)):
        sent = api_event("POST", route, headers={"Idempotency-Key": key}, body=json.dumps(CHANGE))
        sent["requestContext"]["identity"] = {"sourceIp": address}
        client.send(sent)
    audited = rows.execute(
        "SELECT outcome, host(source_address) AS address, version, status, transaction_id::text::bigint AS transaction"
        "  FROM entitlement_audit ORDER BY occurred_at"
    ).fetchall()
    transactions = [row.pop("transaction") for row in audited]
    expected = None if address == "not an address" else address
    assert audited == [
        {"outcome": "APPLIED", "address": expected, "version": 1, "status": "ACTIVE"},
        {"outcome": "ENTITLEMENT_STATE_CONFLICT", "address": expected, "version": None, "status": None},
        {"outcome": "APPLIED", "address": expected, "version": 2, "status": "REVOKED"},
        {"outcome": "ENTITLEMENT_STATE_CONFLICT", "address": expected, "version": None, "status": None},
    ]
    assert 0 < transactions[0] < transactions[1] < transactions[2] < transactions[3]


def test_version_increases_by_one_with_every_change(client: Client, rows: Rows) -> None:
    """E1, E3: grant, revoke, grant again. State conflicts in between change nothing."""
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


def test_state_conflicts_have_distinct_messages_and_are_audited(client: Client, rows: Rows) -> None:
    """E5, A1: not granted, already ACTIVE, already REVOKED."""
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


def test_updated_at_never_decreases(client: Client, rows: Rows, database_url: str) -> None:
    """E1, K4, K5: each change is later than the last one although the clock is an hour behind it; its event agrees.

    Changes of callers and of the expiry worker alike.
    """
    client.grant("k1", starts_at=in_hours(5), expires_at=in_hours(200))
    changes: list[tuple[str, Callable[[], object]]] = [
        ("EntitlementExtended", lambda: client.extend("k2", in_hours(300))),
        ("EntitlementStarted", lambda: _expire(rows, database_url, "starts_at = now() - interval '1 minute'")),
        ("EntitlementExpiring", lambda: _expire(rows, database_url, "expires_at = now() + interval '5 hours'")),
        ("EntitlementExpired", lambda: _expire(rows, database_url, "expires_at = now()")),
        ("EntitlementGranted", lambda: client.grant("k3")),
        ("EntitlementRevoked", lambda: client.revoke("k4")),
    ]
    for version, (event_type, change) in enumerate(changes, start=2):
        rows.execute("UPDATE entitlements SET updated_at = now() + interval '1 hour'")
        (last,) = rows.execute("SELECT updated_at FROM entitlements").fetchall()
        change()
        (row,) = rows.execute("SELECT version, updated_at FROM entitlements").fetchall()
        assert row == {"version": version, "updated_at": last["updated_at"] + timedelta(microseconds=1)}
        (event,) = rows.execute(
            "SELECT event_type, payload FROM outbox_events WHERE aggregate_version = %s", (version,)
        ).fetchall()
        assert event["event_type"] == event_type
        assert datetime.fromisoformat(event["payload"]["occurred_at"]) == row["updated_at"]


def _expire(rows: Rows, database_url: str, times: str) -> None:
    """Set a time of the entitlement, and let the worker record what is due."""
    rows.execute(f"UPDATE entitlements SET {times}")  # noqa: S608
    run_expiry(database_url)


def test_aggregate_key_is_unambiguous(client: Client, rows: Rows) -> None:
    """O8: for names that contain the separator or its escape."""
    pairs = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("ü", "日本/語")]
    for number, (user_id, sku) in enumerate(pairs):
        assert client.grant(f"k{number}", user_id=user_id, stock_keeping_unit=sku).status == 200
    (row,) = rows.execute("SELECT count(DISTINCT aggregate_key) AS n FROM outbox_events").fetchall()
    assert row["n"] == len(pairs)


def test_text_is_returned_unchanged(client: Client, rows: Rows) -> None:
    """The JSON made in SQL escapes what JSON requires and keeps every other character."""
    user = 'quote " backslash \\ emoji 🎁 ﷽ <b>'
    response = client.grant("k1", user_id=user, reason="naïve ☕")
    assert response.json["user_id"] == user
    assert client.list_entitlements(user).json["user_id"] == user
    (event,) = rows.execute("SELECT payload FROM outbox_events").fetchall()
    assert event["payload"]["source"] == "naïve ☕"


def test_one_of_fifty_concurrent_grants_is_applied(database_url: str, rows: Rows) -> None:
    """E7: 50 different keys for an entitlement that does not exist yet."""
    responses = run_concurrently(50, lambda number: _grant(database_url, f"rival-{number}"))
    assert sorted(response.status for response in responses) == [200] + [409] * 49
    assert {response.json["message"] for response in responses if response.status == 409} == {"already ACTIVE"}
    (entitlement,) = rows.execute("SELECT version FROM entitlements").fetchall()
    assert entitlement["version"] == 1
    assert _count(rows, "outbox_events") == 1
    assert _count(rows, "entitlement_audit") == 50


def test_one_of_two_concurrent_revokes_is_applied(database_url: str, rows: Rows) -> None:
    """E7, V1: the second revoke waits for the commit of the first, and is a state conflict."""
    with Client(database_url) as client:
        assert client.grant("k0").status == 200
        with ThreadPoolExecutor(1) as pool:
            with rows.transaction():
                assert rows.execute(_REVOKE).fetchall() == [{"outcome": "APPLIED"}]
                late = pool.submit(client.revoke, "late")
                until("the second revoke waits", lambda: _is_blocking(rows) or late.done())
            response = late.result(timeout=30)
    assert response.json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already REVOKED"}
    (entitlement,) = rows.execute("SELECT status, version FROM entitlements").fetchall()
    assert entitlement == {"status": "REVOKED", "version": 2}
    assert _count(rows, "outbox_events") == 2


def test_concurrent_changes_alternate_and_versions_have_no_gap(database_url: str, rows: Rows) -> None:
    """E1, E7, V1: grants and revokes alternate, versions count 1, 2, 3 … and times increase.

    In each round all workers request the same change of one entitlement with keys of their own. One is applied.
    """
    workers, rounds = 8, 12
    turn = threading.Barrier(workers)

    def churn(worker: int) -> list[int]:
        statuses = []
        with Client(database_url, IDEMPOTENCY_LOCK_WAIT="4s") as client:
            for step in range(rounds):
                turn.wait(timeout=30)
                statuses.append((client.revoke if step % 2 else client.grant)(f"{worker}-{step}").status)
        return statuses

    responses = run_concurrently(workers, churn)
    for statuses in zip(*responses, strict=True):
        assert sorted(statuses) == [200] + [409] * (workers - 1)
    events = rows.execute("SELECT * FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [event["aggregate_version"] for event in events] == list(range(1, rounds + 1))
    assert [event["event_type"] for event in events] == ["EntitlementGranted", "EntitlementRevoked"] * (rounds // 2)
    times = [event["payload"]["occurred_at"] for event in events]
    assert times == sorted(set(times))
    assert [event["ready"] for event in events] == [True] + [False] * (rounds - 1)


def test_unordered_concurrent_changes_leave_no_gap_in_versions(database_url: str, rows: Rows) -> None:
    """E1, E7, V1: each worker grants and revokes three entitlements in its own order, always with a new key."""

    def churn(worker: int) -> int:
        with Client(database_url, IDEMPOTENCY_LOCK_WAIT="4s") as client:
            responses = [
                (client.grant if step % 2 else client.revoke)(f"{worker}-{step}", user_id=f"u{step % 3}")
                for step in range(24)
            ]
        return sum(response.status == 200 for response in responses)

    applied = sum(run_concurrently(8, churn))
    events_by_aggregate: dict[str, list[dict[str, Any]]] = {}
    for event in rows.execute("SELECT * FROM outbox_events ORDER BY aggregate_key, aggregate_version"):
        events_by_aggregate.setdefault(event["aggregate_key"], []).append(event)
    assert sum(map(len, events_by_aggregate.values())) == applied
    assert events_by_aggregate.keys() == {"u0/item1", "u1/item1", "u2/item1"}
    for events in events_by_aggregate.values():
        assert [event["aggregate_version"] for event in events] == list(range(1, len(events) + 1))
        alternating = itertools.cycle(["EntitlementGranted", "EntitlementRevoked"])
        assert [event["event_type"] for event in events] == list(itertools.islice(alternating, len(events)))
        times = [event["payload"]["occurred_at"] for event in events]
        assert times == sorted(set(times))


def test_failure_in_the_last_step_rolls_everything_back(client: Client, rows: Rows) -> None:
    """E6: all or nothing, even if the event cannot be written."""
    rows.execute("ALTER TABLE outbox_events ADD CONSTRAINT broken CHECK (aggregate_key <> 'u_123/item1')")
    response = client.grant("k1")
    assert (response.status, response.code) == (500, "INTERNAL")
    assert "constraint" not in response.body
    for table in ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys"):
        assert _count(rows, table) == 0
    rows.execute("ALTER TABLE outbox_events DROP CONSTRAINT broken")
    assert client.grant("k1").status == 200


def test_event_ids_sort_by_time(client: Client, rows: Rows) -> None:
    """Event ids are UUIDs of version 7."""
    users = [f"u{number}" for number in range(10)]
    for user in users:
        assert client.grant(f"key of {user}", user_id=user).status == 200
        time.sleep(0.002)  # within one millisecond the order of ids is random
    events = rows.execute("SELECT event_id, payload->>'user_id' AS user_id FROM outbox_events ORDER BY event_id")
    by_id = [(row["event_id"], row["user_id"]) for row in events]
    assert [user_id for _, user_id in by_id] == users
    assert {(event_id.version, event_id.variant) for event_id, _ in by_id} == {(7, uuid.RFC_4122)}


# Revokes in the transaction of the test, as the API function does.
_REVOKE = """
SELECT outcome FROM change_entitlement(
  'r', 'early', 'h', interval '1 h', 2000, '0', '0', jsonb_populate_record(
         NULL::entitlement_change, jsonb_build_object(
    'operation_id', gen_random_uuid(), 'operation', 'REVOKE', 'user_id', 'u_123', 'stock_keeping_unit', 'item1',
    'reason', 'refund', 'purchase_id', 'p_1', 'caller', 'c')))
"""


def _grant(database_url: str, key: str, **fields: Any) -> Any:
    with Client(database_url) as client:
        return client.grant(key, **fields)


def _count(rows: Rows, table: str) -> int:
    return int(rows.execute(f"SELECT count(*) AS n FROM {table}").fetchall()[0]["n"])  # noqa: S608


def _is_blocking(rows: Rows) -> bool:
    """Return whether another session waits for this one."""
    waiting = rows.execute("SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))")
    return bool(waiting.fetchall())
