"""I1-I8: the same request again, and everything that is not quite the same request."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.observability import key_fingerprint
from tests.support.client import CHANGE, GRANTS, REVOKES, Client, Response, event
from tests.support.concurrency import at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows


def test_a_repeat_gets_the_same_bytes_and_says_so(client: Client, rows: Rows) -> None:
    """I1: not run again, same status and body, header Idempotent-Replayed."""
    first = client.grant("k1")
    second = client.grant("k1")
    assert (second.status, second.body) == (first.status, first.body)
    assert not first.replayed
    assert second.replayed
    (right,) = rows.execute("SELECT version FROM entitlements").fetchall()
    assert right["version"] == 1
    assert _audited(rows) == ["APPLIED"]


def test_fifty_requests_with_one_key_change_once(database_url: str, rows: Rows) -> None:
    """I5: one of them runs, fifty get its answer."""
    replies = at_once(50, lambda _: _in_own_environment(database_url, "k1"))
    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert sum(not reply.replayed for reply in replies) == 1
    (right,) = rows.execute("SELECT version FROM entitlements").fetchall()
    assert right["version"] == 1
    assert _audited(rows) == ["APPLIED"]


@pytest.mark.parametrize("field", ["user_id", "stock_keeping_unit", "reason", "purchase_id"])
@pytest.mark.parametrize(("route", "operation"), [(GRANTS, "GRANT"), (REVOKES, "REVOKE")], ids=["grant", "revoke"])
def test_a_key_belongs_to_one_request(client: Client, rows: Rows, route: str, operation: str, field: str) -> None:
    """I2, A1, V1: the same key with any other field is a conflict, audited as what was asked, and changes nothing."""
    if route == REVOKES:
        client.grant("k0")
    first = client.change(route, "k1")
    assert first.status == 200
    before = rows.execute("SELECT * FROM entitlements").fetchall()
    other = client.change(route, "k1", **{field: "other"})
    assert (other.status, other.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")
    assert client.change(route, "k1").body == first.body
    assert rows.execute("SELECT * FROM entitlements").fetchall() == before
    *_, applied, refused = rows.execute("SELECT * FROM entitlement_audit ORDER BY occurred_at").fetchall()
    assert (applied["operation"], applied["outcome"]) == (operation, "APPLIED")
    assert (refused["operation"], refused["outcome"]) == (operation, "IDEMPOTENCY_KEY_CONFLICT")
    asked = {"user_id": refused["user_id"], "stock_keeping_unit": refused["stock_keeping_unit"]} | refused["detail"]
    assert asked == CHANGE | {field: "other", "key_fingerprint": key_fingerprint("k1")}
    assert refused["caller"] == "tests"


def test_spelling_does_not_make_another_request(client: Client) -> None:
    """I1: the hash is of the fields, not of the bytes that carried them."""
    first = client.grant("k1")
    spelled = '{ "purchase_id":"p_456",\n "reason":"purchase", "stock_keeping_unit":"item\\u0031", "user_id":"u_123" }'
    second = client.send(event("POST", GRANTS, headers={"idempotency-KEY": "k1"}, body=spelled))
    assert second.replayed
    assert second.body == first.body


def test_a_stored_refusal_is_final_for_its_key(client: Client, rows: Rows) -> None:
    """I3: after the state has changed, a repeat still gets the old refusal; a new key succeeds."""
    client.grant("k1")
    refused = client.grant("k2")
    assert refused.code == "ENTITLEMENT_STATE_CONFLICT"
    client.revoke("k3")
    repeated = client.grant("k2")
    assert (repeated.status, repeated.body, repeated.replayed) == (409, refused.body, True)
    assert client.grant("k4").status == 200
    assert _audited(rows) == ["APPLIED", "ENTITLEMENT_STATE_CONFLICT", "APPLIED", "APPLIED"]


def test_a_malformed_request_does_not_use_up_its_key(client: Client, rows: Rows) -> None:
    """I3: the corrected request runs under the same key."""
    assert client.grant("k1", reason="").code == "BAD_REQUEST"
    assert rows.execute("SELECT 1 FROM idempotency_keys").fetchall() == []
    assert client.grant("k1").status == 200


def test_a_key_is_new_again_after_its_time(client: Client, rows: Rows) -> None:
    """I4: the database's clock decides; on the threshold the key is free."""
    first = client.grant("k1")
    (row,) = rows.execute("SELECT expires_at - created_at AS ttl FROM idempotency_keys").fetchall()
    assert row["ttl"].total_seconds() == 24 * 3600

    rows.execute("UPDATE idempotency_keys SET created_at = now() - interval '1 d', expires_at = now() + interval '1 h'")
    assert client.grant("k1").replayed

    rows.execute("UPDATE idempotency_keys SET expires_at = now()")
    again = client.grant("k1")
    assert (again.code, again.replayed) == ("ENTITLEMENT_STATE_CONFLICT", False)
    assert again.body != first.body
    assert client.grant("k1").replayed
    (row,) = rows.execute("SELECT count(*) AS n, max(expires_at) > now() AS live FROM idempotency_keys").fetchall()
    assert (row["n"], row["live"]) == (1, True)


def test_an_expired_key_may_carry_another_request(client: Client, rows: Rows) -> None:
    """I4, I6: the upsert replaces an expired row, request hash included."""
    client.grant("k1")
    rows.execute("UPDATE idempotency_keys SET created_at = now() - interval '2 d', expires_at = now() - interval '1 d'")
    assert client.grant("k1", user_id="other").status == 200
    assert client.grant("k1").code == "IDEMPOTENCY_KEY_CONFLICT"


def test_keys_are_scoped_by_route_and_caller(client: Client) -> None:
    """I7: the same key elsewhere, or by somebody else, is another key, and nobody sees another's answer."""
    granted = client.change(GRANTS, "k1", caller="a")
    revoked = client.change(REVOKES, "k1", caller="a")
    assert (revoked.status, revoked.json["status"], revoked.replayed) == (200, "REVOKED", False)
    other = client.change(GRANTS, "k1", caller="b")
    assert (other.status, other.replayed) == (200, False)
    assert other.json["version"] == 3
    assert client.change(GRANTS, "k1", caller="a").body == granted.body


@pytest.mark.parametrize(("key", "sign"), [("k1", 1), ("k4", -1)])
def test_the_lock_is_the_hash_of_the_raw_key(database_url: str, rows: Rows, key: str, sign: int) -> None:
    """I5: first 8 bytes of SHA-256(key), signed; so whoever holds that lock holds the key."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True)
    assert number * sign > 0, "the two keys are there to try both signs"
    with rows.transaction():
        rows.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
        assert _impatient(database_url, key).code == "REQUEST_IN_PROGRESS"
        assert _impatient(database_url, f"not {key}").status == 200


def test_a_request_does_not_wait_for_ever(client: Client, database_url: str, rows: Rows) -> None:
    """I8: past the setting it is told to come back; nothing of it stays, and the same key works later."""
    with _holding(rows, "k1"):
        reply = _impatient(database_url, "k1")
    assert (reply.status, reply.code) == (409, "REQUEST_IN_PROGRESS")
    assert int(reply.headers["Retry-After"]) >= 1
    assert not _audited(rows)
    assert client.grant("k1").status == 200


def test_a_finished_request_is_replayed_without_the_lock(client: Client, database_url: str, rows: Rows) -> None:
    """I6: a live row with an equal hash can no longer change, so nobody has to wait to read it."""
    first = client.grant("k1")
    with _holding(rows, "k1"):
        assert _impatient(database_url, "k1").body == first.body


def test_a_request_waits_for_the_one_before_it(client: Client, database_url: str, rows: Rows) -> None:
    """I5, I6: the second decides after the first has committed, and so replays it."""
    replies: list[Response] = []

    def send() -> None:
        replies.append(_in_own_environment(database_url, "k1"))

    waiting = [threading.Thread(target=send) for _ in range(2)]
    with _holding(rows, "k1"):
        for thread in waiting:
            thread.start()
        _until_waiting(rows, 2)
    for thread in waiting:
        thread.join()
    assert sorted(reply.replayed for reply in replies) == [False, True]
    assert len({reply.body for reply in replies}) == 1
    assert client.grant("k1").replayed


def test_replacing_a_live_answer_is_an_error_and_changes_nothing(client: Client, rows: Rows) -> None:
    """I6: the invariant holds in SQL, whoever calls it."""
    first = client.grant("k1")
    with pytest.raises(psycopg.Error, match="invariant broken") as caught:
        rows.execute(
            "SELECT idempotency_finish('tests', %s, 'k1', 'v1:x', 200, '{}', interval '1 h')", (f"POST {GRANTS}",)
        )
    assert caught.value.sqlstate == "GW001"
    assert client.grant("k1").body == first.body


def test_a_broken_invariant_is_loud_and_leaves_nothing(
    client: Client, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """I6: if the read after the lock is bypassed, the caller gets a 500, the log an error, the database nothing."""
    client.grant("k1")
    rows.execute("""
        CREATE OR REPLACE FUNCTION idempotency_begin(
            p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer,
            OUT verdict text, OUT status_code integer, OUT body text
        ) LANGUAGE sql AS $$ SELECT 'PROCEED', NULL::integer, NULL $$""")
    client.database.close()
    reply = client.grant("k1", user_id="other")
    assert (reply.status, reply.code) == (500, "INTERNAL")
    assert "invariant" not in reply.body
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    (error,) = [line for line in lines if line["level"] == "ERROR"]
    assert "idempotency invariant broken" in error["exception"]
    assert rows.execute("SELECT user_id FROM entitlements").fetchall() == [{"user_id": "u_123"}]


@pytest.mark.parametrize(
    ("left", "verdict", "replaced"),
    [("-1 microsecond", "PROCEED", True), ("0", "PROCEED", True), ("1 microsecond", "IDEMPOTENCY_KEY_CONFLICT", False)],
    ids=["just past", "exactly on the threshold", "just before"],
)
def test_a_key_is_expired_from_its_threshold_on(rows: Rows, left: str, verdict: str, replaced: bool) -> None:
    """I4, I6, R1, V1: check and upsert agree to the microsecond; in one transaction `now()` stands still."""
    with rows.transaction(force_rollback=True):
        rows.execute(
            "INSERT INTO idempotency_keys VALUES"
            " ('c', 'r', 'k', 'old', 200, 'old', now() - interval '1 day', now() + %s::interval)",
            (left,),
        )
        begin = "SELECT verdict FROM idempotency_begin('c', 'r', 'k', %s, 1000)"
        assert rows.execute(begin, ("old",)).fetchall() == [{"verdict": "PROCEED" if replaced else "REPLAYED"}]
        assert rows.execute(begin, ("new",)).fetchall() == [{"verdict": verdict}]
        with pytest.raises(psycopg.Error) if not replaced else nullcontext() as caught, rows.transaction():
            rows.execute("SELECT idempotency_finish('c', 'r', 'k', 'new', 201, 'new', interval '1 h')")
        if caught is not None:
            assert caught.value.sqlstate == "GW001"
        (stored,) = rows.execute(
            "SELECT request_hash, status_code, response_body, created_at = now() AS now,"
            " expires_at = now() + interval '1 h' AS renewed FROM idempotency_keys"
        ).fetchall()
        expected = ("new", 201, "new", True, True) if replaced else ("old", 200, "old", False, False)
        assert tuple(stored.values()) == expected


def test_a_call_leaves_the_session_s_lock_timeout_as_it_was(database_url: str, rows: Rows) -> None:
    """I8, V1: whatever the outcome; a pooled connection would carry the limit to work of another kind."""
    begin = "SELECT verdict FROM idempotency_begin('c', 'r', %s, %s, 50)"
    finish = "SELECT idempotency_finish('c', 'r', %s, %s, 200, '{}', interval '1 h')"
    change = """
        SELECT outcome FROM change_entitlement(
          'c', 'r', %s, %s, interval '1 h', 50, %s, 'u_1', 'item1', 'purchase', 'p_1', gen_random_uuid(), NULL)"""
    with psycopg.connect(database_url, autocommit=True) as session, _holding(rows, "held"):
        session.execute("SET lock_timeout = '12345ms'")
        outcomes = []
        for statement, parameters in [
            (begin, ("guarded", "h")),
            (finish, ("guarded", "h")),
            (begin, ("guarded", "h")),
            (begin, ("guarded", "other")),
            (begin, ("held", "h")),
            (change, ("k1", "h", "ACTIVE")),
            (change, ("k1", "h", "ACTIVE")),
            (change, ("k1", "other", "ACTIVE")),
            (change, ("k2", "h", "ACTIVE")),
            (change, ("k3", "h", "REVOKED")),
            (change, ("held", "h", "ACTIVE")),
        ]:
            outcomes += session.execute(statement, parameters).fetchall()
            assert session.execute("SHOW lock_timeout").fetchall() == [("12345ms",)]
        with session.transaction():
            session.execute(begin, ("in a block", "h"))
            assert session.execute("SHOW lock_timeout").fetchall() == [("50ms",)]
        assert session.execute("SHOW lock_timeout").fetchall() == [("12345ms",)]
    assert [outcome for (outcome,) in outcomes] == [
        *("PROCEED", "", "REPLAYED", "IDEMPOTENCY_KEY_CONFLICT", "REQUEST_IN_PROGRESS"),
        *("APPLIED", "REPLAYED", "IDEMPOTENCY_KEY_CONFLICT", "ENTITLEMENT_STATE_CONFLICT", "APPLIED"),
        "REQUEST_IN_PROGRESS",
    ]


def test_a_request_leaves_its_connection_s_lock_timeout_as_it_was(client: Client) -> None:
    """I8, V1: the next statement of the same execution environment waits as long as it would have before."""
    with client.database.session() as session:
        before = session.execute("SHOW lock_timeout").fetchall()
    assert [client.grant("k1").status, client.grant("k1").status, client.revoke("k2").status] == [200] * 3
    with client.database.session() as session:
        assert session.execute("SHOW lock_timeout").fetchall() == before


def test_a_stronger_isolation_level_is_refused(rows: Rows) -> None:
    """A snapshot from before the lock would double an effect, so the guard does not work with one."""
    rows.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        rows.execute("SELECT idempotency_begin('c', 'r', 'k', 'h', 1000)")


@pytest.mark.parametrize("status", [199, 400, 500, 503])
def test_what_must_not_be_stored_cannot_be(rows: Rows, status: int) -> None:
    """I3: a constraint keeps malformed requests and server faults out."""
    with pytest.raises(psycopg.errors.CheckViolation):
        rows.execute("SELECT idempotency_finish('c', 'r', 'k', 'h', %s, '{}', interval '1 h')", (status,))


def test_the_guard_serves_any_transaction(rows: Rows) -> None:
    """Another handler gets the same guarantee in two calls around its own work."""
    begin = "SELECT verdict, status_code, body FROM idempotency_begin('c', 'r', 'k', 'h', 1000)"
    with rows.transaction():
        assert rows.execute(begin).fetchall() == [{"verdict": "PROCEED", "status_code": None, "body": None}]
        rows.execute("SELECT idempotency_finish('c', 'r', 'k', 'h', 201, 'done', interval '1 h')")
    assert rows.execute(begin).fetchall() == [{"verdict": "REPLAYED", "status_code": 201, "body": "done"}]


def _in_own_environment(database_url: str, key: str, **environ: str) -> Response:
    with Client(database_url, **environ) as client:
        return client.grant(key)


def _impatient(database_url: str, key: str) -> Response:
    return _in_own_environment(database_url, key, IDEMPOTENCY_LOCK_WAIT="50ms")


@contextmanager
def _holding(rows: Rows, key: str) -> Iterator[None]:
    """Another request that has the key and has not finished."""
    with rows.transaction():
        rows.execute("SELECT idempotency_begin('c', 'r', %s, 'h', 1000)", (key,))
        yield


def _until_waiting(rows: Rows, count: int) -> None:
    """Return when `count` sessions wait for an advisory lock of this database."""
    waiting = """
        SELECT count(*) AS n FROM pg_locks
         WHERE locktype = 'advisory' AND NOT granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    deadline = time.monotonic() + 10
    while rows.execute(waiting).fetchall()[0]["n"] < count:
        assert time.monotonic() < deadline, "nobody came to wait"
        time.sleep(0.005)


def _audited(rows: Rows) -> list[str]:
    return [row["outcome"] for row in rows.execute("SELECT outcome FROM entitlement_audit ORDER BY occurred_at")]
