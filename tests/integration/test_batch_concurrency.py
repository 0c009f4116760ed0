"""K6: batches that wait for each other, deadlocks, crashes, and batches and single requests with the same keys."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.client import Client, item
from tests.support.concurrency import run_concurrently
from tests.support.paths import ROOT
from tests.support.run import program_environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.integration.conftest import Rows
    from tests.support.client import Response

LOCK_KEY = "('x' || left(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 16))::bit(64)::bigint"
ADVISORY_LOCKS = """
SELECT pid, granted, (classid::bigint << 32) | objid::bigint AS lock_key FROM pg_locks
 WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
RUNNING = """
SELECT FROM pg_stat_activity
 WHERE datname = current_database() AND state <> 'idle' AND query LIKE '%FROM change_entitlements(%'
   AND pid <> pg_backend_pid()
"""
WAITING = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%change_entitlements%'
"""


def results(response: Response) -> list[dict[str, Any]]:
    """Return the results of a batch."""
    assert response.status == 200, response.body
    listed: list[dict[str, Any]] = response.json["results"]
    return listed


def keys_by_lock(rows: Rows, count: int) -> list[str]:
    """Return keys in the order of their advisory locks."""
    return sorted((f"k{n}" for n in range(count)), key=lambda key: lock_key(rows, key))


def lock_key(rows: Rows, key: str) -> int:
    """Return the advisory lock of a key (I5)."""
    (row,) = rows.execute(f"SELECT {LOCK_KEY} AS number", (key,)).fetchall()
    return int(row["number"])


@contextmanager
def holding(owner_url: str, statement: str, *parameters: tuple[str, ...]) -> Iterator[None]:
    """Execute a statement that locks something, for each of the parameters, and hold the locks."""
    with psycopg.connect(owner_url) as other:
        for each in parameters:
            other.execute(statement, each)
        yield
        other.rollback()


HOLD_KEY = f"SELECT pg_advisory_xact_lock({LOCK_KEY})"
HOLD_ROW = "SELECT FROM entitlements WHERE user_id = %s FOR UPDATE"
# The item with this key waits when it stores its response, after all changes before it and its own.
HOLD_RESPONSE = """
INSERT INTO idempotency_keys (caller, route, idempotency_key, request_hash, status_code, response_body, created_at,
                              expires_at)
VALUES ('tests', 'POST /v1/entitlements/revokes', %s, 'h', 200, '{}', now(), now() + interval '1 hour')
"""


def waiting(rows: Rows, *batches: Future[Response]) -> bool:
    """Return whether all batches wait for a lock, or one has ended."""
    return len(rows.execute(WAITING).fetchall()) == len(batches) or any(batch.done() for batch in batches)


def test_keys_are_locked_in_the_order_of_the_lock_key(database_url: str, owner_url: str, rows: Rows) -> None:
    """K6, I5: while a batch waits for the first lock, it holds none of the later ones, whatever the order of items."""
    keys = keys_by_lock(rows, 6)
    with Client(database_url) as client, ThreadPoolExecutor(1) as pool:
        with holding(owner_url, HOLD_KEY, (keys[2],)):
            sent = [item(key, user_id=key) for key in (keys[5], keys[2], keys[0], keys[4], keys[1], keys[3])]
            batch = pool.submit(client.batch, *sent)
            until("the batch waits", lambda: waiting(rows, batch))
            locks = rows.execute(ADVISORY_LOCKS).fetchall()
        assert [each["status_code"] for each in results(batch.result(timeout=30))] == [200] * 6
    waited = {lock["pid"] for lock in locks if not lock["granted"]}
    assert len(waited) == 1
    held = {lock["lock_key"] for lock in locks if lock["granted"] and lock["pid"] in waited}
    assert held == {lock_key(rows, key) for key in keys[:2]}


def test_all_keys_are_locked_before_the_first_change(database_url: str, owner_url: str, rows: Rows) -> None:
    """K6: a batch that waits for its last key holds no entitlement, so that other requests do not wait for it."""
    with Client(database_url) as client, Client(database_url, IDEMPOTENCY_LOCK_WAIT="500ms") as other:
        with ThreadPoolExecutor(1) as pool, holding(owner_url, HOLD_KEY, ("k2",)):
            batch = pool.submit(client.batch, item("k1", user_id="u1"), item("k2", user_id="u2"))
            until("the batch waits", lambda: waiting(rows, batch))
            assert other.grant("k3", user_id="u1").status == 200
        refused, granted = results(batch.result(timeout=30))
    assert refused["response"]["message"] == "already ACTIVE"
    assert granted["status_code"] == 200


def test_item_whose_key_is_held_is_in_progress(database_url: str, owner_url: str, rows: Rows) -> None:
    """K6, I8: with the text of the single route; the others are applied, and the item can be sent again."""
    sent = [item(f"k{n}", user_id=f"u{n}") for n in range(4)]
    with Client(database_url, IDEMPOTENCY_LOCK_WAIT="20ms") as client:
        with holding(owner_url, HOLD_KEY, ("k1",)):
            alone = client.grant("k1", user_id="u1")
            first, held, third, last = results(client.batch(*sent))
        assert held == {"status_code": 409, "replayed": False, "response": alone.json}
        assert alone.code == "REQUEST_IN_PROGRESS"
        assert [each["status_code"] for each in (first, third, last)] == [200] * 3
        assert [each["replayed"] for each in results(client.batch(*sent))] == [True, False, True, True]
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 4


def test_both_items_with_a_held_key_are_in_progress(database_url: str, owner_url: str) -> None:
    """K6, I7: also on another route, which shares the lock but not the key."""
    with Client(database_url, IDEMPOTENCY_LOCK_WAIT="20ms") as client, holding(owner_url, HOLD_KEY, ("k1",)):
        listed = results(client.batch(item("k1"), item("k1"), item("k1", "revoke"), item("k2")))
    assert [each["status_code"] for each in listed] == [409, 409, 409, 200]


def test_stored_response_is_replayed_without_the_lock(database_url: str, owner_url: str) -> None:
    """K6, I6: as on the single route."""
    with Client(database_url, IDEMPOTENCY_LOCK_WAIT="20ms") as client:
        stored = client.grant("k1")
        with holding(owner_url, HOLD_KEY, ("k1",)):
            replayed, other_route = results(client.batch(item("k1"), item("k1", "revoke")))
    assert replayed == {"status_code": 200, "replayed": True, "response": stored.json}
    assert other_route["response"]["code"] == "REQUEST_IN_PROGRESS"


def test_item_that_is_not_executed_waits_for_no_entitlement(database_url: str, owner_url: str) -> None:
    """W7, I6: neither a replay nor an item whose key is held; other changes may hold their entitlements."""
    with Client(database_url, IDEMPOTENCY_LOCK_WAIT="20ms") as client:
        client.grant("k1", user_id="u1")
        client.grant("k2", user_id="u2")
        with holding(owner_url, HOLD_ROW, ("u1",), ("u2",)), holding(owner_url, HOLD_KEY, ("k3",)):
            listed = results(client.batch(item("k1", user_id="u1"), item("k3", "revoke", user_id="u2")))
    assert [(each["status_code"], each["replayed"]) for each in listed] == [(200, True), (409, False)]


def test_deadline_for_keys_is_that_of_the_whole_batch(database_url: str, owner_url: str) -> None:
    """K6, I8: twelve held keys are not waited for one after the other, which would exceed the statement timeout."""
    held = [f"held{n}" for n in range(12)]
    environ = {"IDEMPOTENCY_LOCK_WAIT": "300ms", "DATABASE_STATEMENT_TIMEOUT": "2s"}
    with Client(database_url, **environ) as client, holding(owner_url, HOLD_KEY, *((key,) for key in held)):
        listed = results(client.batch(*(item(key, user_id=key) for key in [*held, "free"])))
    assert [each["status_code"] for each in listed] == [409] * 12 + [200]


def test_locked_row_ends_the_batch_and_stores_nothing(database_url: str, owner_url: str, rows: Rows) -> None:
    """K6, E6: 503, as a single request gets; the same batch runs when the row is free."""
    sent = [item(f"k{n}", "revoke", user_id=f"u{n}") for n in range(3)]
    with Client(database_url, IDEMPOTENCY_LOCK_WAIT="20ms") as client:
        for n in range(3):
            client.grant(f"g{n}", user_id=f"u{n}")
        with holding(owner_url, HOLD_ROW, ("u1",)):
            response = client.batch(*sent)
            assert (response.status, response.code) == (503, "UNAVAILABLE")
        assert len(rows.execute("SELECT FROM entitlement_audit").fetchall()) == 3
        assert [each["replayed"] for each in results(client.batch(*sent))] == [False] * 3


CALL = """
SELECT outcomes FROM change_entitlements(
    'c', '1 h', %(lock_wait_ms)s, %(wait_ms)s, false, '0', '0', (
      SELECT jsonb_agg(jsonb_build_object(
               'route', 'r', 'key', k, 'request_hash', 'h', 'operation', 'REVOKE', 'user_id', 'u_123',
               'stock_keeping_unit', 'item1', 'reason', 'x', 'purchase_id', 'p', 'operation_id', gen_random_uuid(),
               'caller', 'c', 'trace_id', 't'))
        FROM unnest(%(keys)s::text[]) k))
"""


@pytest.mark.parametrize(("lock_wait_ms", "wait_ms"), [(60_000, 100), (60_000, 0), (100, 60_000)])
def test_waits_for_rows_end_before_the_statement_timeout(
    database_url: str, owner_url: str, client: Client, lock_wait_ms: int, wait_ms: int
) -> None:
    """K6: one wait has a limit, and so have all waits together. If no time is left, nothing waits."""
    client.grant("k1")
    parameters = {"lock_wait_ms": lock_wait_ms, "wait_ms": wait_ms, "keys": ["k"]}
    with psycopg.connect(database_url, autocommit=True) as session, holding(owner_url, HOLD_ROW, ("u_123",)):
        session.execute("SET statement_timeout = '5s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.execute(CALL, parameters)


def test_batch_does_not_wait_for_a_held_key_again(database_url: str, owner_url: str) -> None:
    """K6: not while it has locked rows; waiting for each of the 40 keys would exceed the statement timeout."""
    keys = [f"k{n}" for n in range(40)]
    parameters = {"lock_wait_ms": 100, "wait_ms": 60_000, "keys": keys}
    with psycopg.connect(database_url, autocommit=True) as session:
        session.execute("SET statement_timeout = '3s'")
        with holding(owner_url, HOLD_KEY, *((key,) for key in keys)):
            assert session.execute(CALL, parameters).fetchall() == [(["REQUEST_IN_PROGRESS"] * 40,)]


@pytest.mark.parametrize("exist", [False, True], ids=["new", "existing"])
def test_batches_in_opposite_order_wait_in_one_order(
    database_url: str, owner_url: str, rows: Rows, capsys: pytest.CaptureFixture[str], *, exist: bool
) -> None:
    """W7, K6, E7: two batches change the same two entitlements in opposite order, and neither is a deadlock.

    Between these changes, each changes an entitlement of its own, whose row is held until both wait. If the locks were
    taken in the order of the items, each would have one of the two entitlements and wait for the other.
    """
    # PostgreSQL looks for a deadlock after a second. The limits of waits must not end one of the two before.
    patient = {"IDEMPOTENCY_LOCK_WAIT": "15s", "DATABASE_STATEMENT_TIMEOUT": "40s"}
    with (
        Client(database_url, **patient) as one,
        Client(database_url, **patient) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        for name in ("a", "b"):
            one.grant(f"g-{name}", user_id=name)
        for name in ("u1", "u2") if exist else ():
            one.grant(f"g-{name}", user_id=name)
            one.revoke(f"r-{name}", user_id=name)
        with holding(owner_url, HOLD_ROW, ("a",), ("b",)):
            first = [item("k1", user_id="u1"), item("k2", "revoke", user_id="a"), item("k3", user_id="u2")]
            second = [item("k4", user_id="u2"), item("k5", "revoke", user_id="b"), item("k6", user_id="u1")]
            batches = pool.submit(one.batch, *first), pool.submit(two.batch, *second)
            until("both wait", lambda: waiting(rows, *batches))
        listed = [results(batch.result(timeout=60)) for batch in batches]
    assert "deadlock" not in capsys.readouterr().out
    winner, loser = sorted(listed, key=lambda each: each[0]["status_code"])
    assert [each["status_code"] for each in winner] == [200, 200, 200]
    assert [each["status_code"] for each in loser] == [409, 200, 409]
    assert_versions_have_no_gaps(rows)


@pytest.mark.parametrize("backend_ends", [True, False], ids=["backend killed too", "backend goes on"])
def test_killed_caller_leaves_all_or_nothing(
    database_url: str, owner_url: str, rows: Rows, *, backend_ends: bool
) -> None:
    """K6, E6: kill -9 in the middle of a batch; the repeat completes all items, and none has two effects."""
    sent = [item(f"k{n}", user_id=f"u{n}") for n in range(10)]
    sent[5] = item("k5", "revoke", user_id="u5")
    with Client(database_url) as client:
        client.grant("g5", user_id="u5")
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.batch_caller", database_url],
        env=program_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdin is not None
    with holding(owner_url, HOLD_RESPONSE, ("k5",)):
        program.stdin.write(json.dumps({"items": sent}).encode())
        program.stdin.close()
        until("the batch waits in its middle", lambda: len(rows.execute(WAITING).fetchall()) == 1, 60)
        program.kill()
        assert program.wait() == -signal.SIGKILL
        if backend_ends:
            (backend,) = rows.execute(WAITING).fetchall()
            rows.execute("SELECT pg_terminate_backend(%s)", (backend["pid"],))
            until("the backend has ended", lambda: not rows.execute(WAITING).fetchall())
    assert program.stdout is not None
    assert program.stdout.read() == b""
    program.stdout.close()
    until("the backend is idle", lambda: not rows.execute(RUNNING).fetchall())
    applied = len(rows.execute("SELECT FROM outbox_events").fetchall()) - 1
    assert applied == (0 if backend_ends else 10)
    with Client(database_url) as client:
        listed = results(client.batch(*sent))
    assert [each["status_code"] for each in listed] == [200] * 10
    assert [each["replayed"] for each in listed] == [not backend_ends] * 10
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 11
    assert_versions_have_no_gaps(rows)


def test_each_key_has_one_effect_in_overlapping_batches_and_single_requests(database_url: str, rows: Rows) -> None:
    """K6, E7, I1: eight clients send the same 60 requests in different groups; every key has one response.

    They send the requests of three users at the same time, in any order, so that they meet at each key.
    """
    requests = [
        item(f"{name}{n}", operation, user_id=f"u{n:02}")
        for n in range(30)
        for name, operation in (("g", "grant"), ("r", "revoke"))
    ]
    meeting = threading.Barrier(8)

    def send(number: int) -> list[tuple[str, bool, str]]:
        chance = random.Random(number)  # noqa: S311
        seen: list[tuple[str, bool, str]] = []
        with Client(database_url, IDEMPOTENCY_LOCK_WAIT="4s", DATABASE_STATEMENT_TIMEOUT="20s") as client:
            for first in range(0, len(requests), 6):
                left = chance.sample(requests[first : first + 6], 6)
                meeting.wait(timeout=60)
                while left:
                    group = left[: chance.choice([1, 3, 6])]
                    left = left[len(group) :]
                    seen += send_group(client, group)
        return seen

    def send_group(client: Client, group: list[dict[str, Any]]) -> Iterator[tuple[str, bool, str]]:
        if len(group) == 1:
            (sent,) = group
            change = client.grant if sent["operation"] == "grant" else client.revoke
            response = change(sent["idempotency_key"], user_id=sent["user_id"])
            yield sent["idempotency_key"], response.replayed, response.body
            return
        for sent, result in zip(group, results(client.batch(*group)), strict=True):
            body = json.dumps(result["response"], separators=(",", ":"), ensure_ascii=False)
            yield sent["idempotency_key"], result["replayed"], body

    by_key: dict[str, list[tuple[bool, str]]] = {}
    for key, replayed, body in (each for seen in run_concurrently(8, send) for each in seen):
        by_key.setdefault(key, []).append((replayed, body))
    assert {len(seen) for seen in by_key.values()} == {8}
    for key, seen in by_key.items():
        assert len({body for _, body in seen}) == 1, (key, seen)
        assert [replayed for replayed, _ in seen].count(False) == 1, (key, seen)
    applied = sum('"version"' in seen[0][1] for seen in by_key.values())
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == applied
    assert len(rows.execute("SELECT FROM entitlement_audit").fetchall()) == 60
    assert_versions_have_no_gaps(rows)


def assert_versions_have_no_gaps(rows: Rows) -> None:
    """Fail unless the events of every entitlement count 1, 2, 3 … up to its version."""
    listed = rows.execute("""
        SELECT e.version, array_agg(o.aggregate_version ORDER BY o.aggregate_version) AS versions
          FROM entitlements e
          JOIN outbox_events o ON o.aggregate_key = entitlement_aggregate_key(e.user_id, e.stock_keeping_unit)
         GROUP BY e.user_id, e.stock_keeping_unit""").fetchall()
    assert listed
    for row in listed:
        assert row["versions"] == list(range(1, row["version"] + 1))
