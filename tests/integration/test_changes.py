"""E1-E7: what a grant and a revoke do, and what they refuse."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.observability import key_fingerprint
from tests.support.client import GRANTS, REVOKES, Client
from tests.support.concurrency import at_once
from tests.support.workers.relay_support import until

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


@pytest.mark.parametrize("change", [REVOKES, GRANTS], ids=["a revoke", "a grant after a revoke"])
def test_updated_at_never_runs_backwards(client: Client, rows: Rows, change: str) -> None:
    """E1, V1: even if the last change lies in the future of the server's clock; row, response and event agree."""
    client.grant("k1")
    if change == GRANTS:
        client.revoke("k2")
    rows.execute("UPDATE entitlements SET updated_at = now() + interval '1 hour'")
    (future,) = rows.execute("SELECT updated_at FROM entitlements").fetchall()
    reply = client.change(change, "k3")
    assert reply.status == 200
    expected = future["updated_at"] + timedelta(microseconds=1)
    assert datetime.fromisoformat(reply.json["updated_at"]) == expected
    assert rows.execute("SELECT updated_at FROM entitlements").fetchall() == [{"updated_at": expected}]
    (event,) = rows.execute("SELECT payload FROM outbox_events ORDER BY aggregate_version DESC LIMIT 1").fetchall()
    assert event["payload"]["occurred_at"] == reply.json["updated_at"]


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
    assert client.list_entitlements(user).json["user_id"] == user
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


def test_of_two_rival_revokes_one_wins(database_url: str, rows: Rows) -> None:
    """E7, V1: the second came before the first had committed, waits for it, and is refused."""
    with Client(database_url) as client:
        assert client.grant("k0").status == 200
        with ThreadPoolExecutor(1) as pool:
            with rows.transaction():
                assert rows.execute(_REVOKE).fetchall() == [{"outcome": "APPLIED"}]
                late = pool.submit(client.revoke, "late")
                until("the second revoke waits", lambda: _waiting(rows) or late.done())
            reply = late.result(timeout=30)
    assert reply.json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already REVOKED"}
    (right,) = rows.execute("SELECT status, version FROM entitlements").fetchall()
    assert right == {"status": "REVOKED", "version": 2}
    assert _count(rows, "outbox_events") == 2


def test_rival_grants_and_revokes_take_turns(database_url: str, rows: Rows) -> None:
    """E1, E7, V1: whatever the order, grants and revokes alternate, versions count 1, 2, 3 ... and time moves forward.

    In each round all workers want the same change of the same right, each under a key of its own, and one gets it.
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

    replies = at_once(workers, churn)
    for one_round in zip(*replies, strict=True):
        assert sorted(one_round) == [200] + [409] * (workers - 1)
    events = rows.execute("SELECT * FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [event["aggregate_version"] for event in events] == list(range(1, rounds + 1))
    assert [event["event_type"] for event in events] == ["EntitlementGranted", "EntitlementRevoked"] * (rounds // 2)
    times = [event["payload"]["occurred_at"] for event in events]
    assert times == sorted(set(times))
    assert [event["ready"] for event in events] == [True] + [False] * (rounds - 1)


def test_a_storm_of_changes_without_turns_leaves_no_gap(database_url: str, rows: Rows) -> None:
    """E1, E7, V1: each worker goes its own way through grants and revokes of three rights, always under a new key."""

    def churn(worker: int) -> int:
        with Client(database_url, IDEMPOTENCY_LOCK_WAIT="4s") as client:
            replies = [
                (client.grant if step % 2 else client.revoke)(f"{worker}-{step}", user_id=f"u{step % 3}")
                for step in range(24)
            ]
        return sum(reply.status == 200 for reply in replies)

    applied = sum(at_once(8, churn))
    found: dict[str, list[dict[str, Any]]] = {}
    for event in rows.execute("SELECT * FROM outbox_events ORDER BY aggregate_key, aggregate_version"):
        found.setdefault(event["aggregate_key"], []).append(event)
    assert sum(map(len, found.values())) == applied
    assert found.keys() == {"u0/item1", "u1/item1", "u2/item1"}
    for events in found.values():
        assert [event["aggregate_version"] for event in events] == list(range(1, len(events) + 1))
        alternating = itertools.cycle(["EntitlementGranted", "EntitlementRevoked"])
        assert [event["event_type"] for event in events] == list(itertools.islice(alternating, len(events)))
        times = [event["payload"]["occurred_at"] for event in events]
        assert times == sorted(set(times))


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


def test_each_operation_has_an_identifier_that_sorts_by_time(client: Client, rows: Rows) -> None:
    """Event ids are UUIDs of version 7: by id, the events are in the order in which they were made."""
    users = [f"u{number}" for number in range(10)]
    for user in users:
        assert client.grant(f"key of {user}", user_id=user).status == 200
        time.sleep(0.002)  # the id's time is in milliseconds; within one, chance decides
    found = rows.execute("SELECT event_id, payload->>'user_id' AS user_id FROM outbox_events ORDER BY event_id")
    by_id = [(row["event_id"], row["user_id"]) for row in found]
    assert [user_id for _, user_id in by_id] == users
    assert {(event_id.version, event_id.variant) for event_id, _ in by_id} == {(7, uuid.RFC_4122)}


# A change in the test's own transaction, as the function makes it.
_REVOKE = """
SELECT outcome FROM change_entitlement(
  'c', 'r', 'early', 'h', interval '1 h', 2000, 'REVOKED', 'u_123', 'item1', 'refund', 'p_1', gen_random_uuid(), NULL)
"""


def _grant(database_url: str, key: str, **fields: Any) -> Any:
    with Client(database_url) as client:
        return client.grant(key, **fields)


def _count(rows: Rows, table: str) -> int:
    return int(rows.execute(f"SELECT count(*) AS n FROM {table}").fetchall()[0]["n"])  # noqa: S608


def _waiting(rows: Rows) -> bool:
    """Whether a session waits for this one."""
    found = rows.execute("SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))")
    return bool(found.fetchall())
