"""I1-I8: replays, key conflicts, expiry and locking of idempotency keys."""

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
from grantwire_idempotency import RequestIdentity, StoredResponse, TransactionGuard
from grantwire_idempotency.errors import KeyConflictError
from tests.support.client import CHANGE, GRANTS, REVOKES, Client, Response, event
from tests.support.concurrency import run_concurrently

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows


def test_replay_returns_stored_response_byte_for_byte(client: Client, rows: Rows) -> None:
    """I1: the request does not run again. Status and body are equal, and Idempotent-Replayed is set."""
    first = client.grant("k1")
    second = client.grant("k1")
    assert (second.status, second.body) == (first.status, first.body)
    assert not first.replayed
    assert second.replayed
    (entitlement,) = rows.execute("SELECT version FROM entitlements").fetchall()
    assert entitlement["version"] == 1
    assert _audited_outcomes(rows) == ["APPLIED"]


def test_fifty_concurrent_requests_with_one_key_run_once(database_url: str, rows: Rows) -> None:
    """I5: one request runs, and all fifty get its response."""
    responses = run_concurrently(
        50, lambda _: _grant_with_own_connection(database_url, "k1", IDEMPOTENCY_LOCK_WAIT="20s")
    )
    assert {(response.status, response.body) for response in responses} == {(200, responses[0].body)}
    assert sum(not response.replayed for response in responses) == 1
    (entitlement,) = rows.execute("SELECT version FROM entitlements").fetchall()
    assert entitlement["version"] == 1
    assert _audited_outcomes(rows) == ["APPLIED"]


def test_guard_and_grant_share_keys(client: Client, database_url: str, rows: Rows) -> None:
    """I2: a guard of the library uses the same SQL functions, so the key of a grant is a conflict there."""
    client.grant("k1")
    (row,) = rows.execute("SELECT caller, route FROM idempotency_keys").fetchall()
    identity = RequestIdentity(row["caller"], row["route"], "k1", "another request")
    with psycopg.connect(database_url, autocommit=True) as connection, pytest.raises(KeyConflictError):
        TransactionGuard(connection).run(identity, lambda _: StoredResponse(200, "{}"))


@pytest.mark.parametrize("field", ["user_id", "stock_keeping_unit", "reason", "purchase_id"])
@pytest.mark.parametrize(("route", "operation"), [(GRANTS, "GRANT"), (REVOKES, "REVOKE")], ids=["grant", "revoke"])
def test_same_key_with_a_different_field_is_a_key_conflict(
    client: Client, rows: Rows, route: str, operation: str, field: str
) -> None:
    """I2, A1, V1: the conflict changes nothing, and is audited with the fields of the refused request."""
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
    columns = ("user_id", "stock_keeping_unit", "purchase_id")
    audited = {name: refused[name] for name in columns} | refused["detail"]
    assert audited == CHANGE | {field: "other", "key_fingerprint": key_fingerprint("k1")}
    assert refused["caller"] == "tests"


_CONFLICTS = "SELECT * FROM key_conflicts ORDER BY caller, route, key_hash"


def test_repeated_conflicts_of_a_key_write_one_audit_row(client: Client, rows: Rows) -> None:
    """G6, A1: the first is audited; the others are counted, whatever they ask for. Other keys and callers are not."""
    for caller in ("shop", "other"):
        client.change(GRANTS, "k1", caller=caller, user_id=caller)
    for number in range(5):
        assert client.change(GRANTS, "k1", caller="shop", user_id=f"u_{number}").code == "IDEMPOTENCY_KEY_CONFLICT"
    client.change(GRANTS, "k1", caller="other", user_id="u_9")
    audited = rows.execute("SELECT * FROM entitlement_audit WHERE outcome LIKE 'IDEMP%' ORDER BY user_id").fetchall()
    assert [(row["caller"], row["user_id"]) for row in audited] == [("shop", "u_0"), ("other", "u_9")]
    counted = {row["operation_id"]: row["conflicts"] for row in rows.execute(_CONFLICTS)}
    assert counted == {audited[0]["operation_id"]: 5, audited[1]["operation_id"]: 1}
    assert client.change(GRANTS, "k1", caller="shop", user_id="shop").replayed


def test_conflicts_of_another_day_write_another_audit_row(client: Client, rows: Rows) -> None:
    """G6: a count belongs to a day, so that an attack that goes on stays visible in the audit."""
    client.grant("k1")
    client.grant("k1", user_id="u_1")
    rows.execute("UPDATE key_conflicts SET day = day - 1")
    for _ in range(2):
        client.grant("k1", user_id="u_2")
    assert _audited_outcomes(rows).count("IDEMPOTENCY_KEY_CONFLICT") == 2
    assert [row["conflicts"] for row in rows.execute(f"{_CONFLICTS}, day")] == [1, 2]


def test_concurrent_conflicts_of_a_key_are_counted_exactly(database_url: str, rows: Rows) -> None:
    """G6: eight callers at the same time leave one audit row and the right count."""

    def conflict(number: int) -> None:
        with Client(database_url) as client:
            client.grant("k1", user_id=f"u_{number}")

    run_concurrently(8, conflict)
    assert _audited_outcomes(rows) == ["APPLIED", "IDEMPOTENCY_KEY_CONFLICT"]
    assert [row["conflicts"] for row in rows.execute(_CONFLICTS)] == [7]


def test_json_formatting_does_not_change_the_request_hash(client: Client) -> None:
    """I1: the hash covers the parsed fields, not the bytes of the body."""
    first = client.grant("k1")
    reformatted = (
        '{ "purchase_id":"p_456",\n "reason":"purchase", "stock_keeping_unit":"item\\u0031", "user_id":"u_123" }'
    )
    second = client.send(event("POST", GRANTS, headers={"idempotency-KEY": "k1"}, body=reformatted))
    assert second.replayed
    assert second.body == first.body


def test_state_conflict_is_final_for_its_key(client: Client, rows: Rows) -> None:
    """I3: the stored response is replayed even after the state has changed; a new key succeeds."""
    client.grant("k1")
    refused = client.grant("k2")
    assert refused.code == "ENTITLEMENT_STATE_CONFLICT"
    client.revoke("k3")
    repeated = client.grant("k2")
    assert (repeated.status, repeated.body, repeated.replayed) == (409, refused.body, True)
    assert client.grant("k4").status == 200
    assert _audited_outcomes(rows) == ["APPLIED", "ENTITLEMENT_STATE_CONFLICT", "APPLIED", "APPLIED"]


def test_malformed_request_is_not_stored(client: Client, rows: Rows) -> None:
    """I3: the corrected request runs with the same key."""
    assert client.grant("k1", reason="").code == "BAD_REQUEST"
    assert rows.execute("SELECT 1 FROM idempotency_keys").fetchall() == []
    assert client.grant("k1").status == 200


def test_expired_key_is_new_again(client: Client, rows: Rows) -> None:
    """I4: the clock of the database decides. A key has expired when now() equals expires_at."""
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


def test_expired_key_can_be_used_for_a_different_request(client: Client, rows: Rows) -> None:
    """I4, I6: the upsert replaces the expired row, including its request hash."""
    client.grant("k1")
    rows.execute("UPDATE idempotency_keys SET created_at = now() - interval '2 d', expires_at = now() - interval '1 d'")
    assert client.grant("k1", user_id="other").status == 200
    assert client.grant("k1").code == "IDEMPOTENCY_KEY_CONFLICT"


def test_keys_are_scoped_by_route_and_caller(client: Client) -> None:
    """I7: the same text on another route or from another caller is a different key."""
    granted = client.change(GRANTS, "k1", caller="a")
    revoked = client.change(REVOKES, "k1", caller="a")
    assert (revoked.status, revoked.json["status"], revoked.replayed) == (200, "REVOKED", False)
    other = client.change(GRANTS, "k1", caller="b")
    assert (other.status, other.replayed) == (200, False)
    assert other.json["version"] == 3
    assert client.change(GRANTS, "k1", caller="a").body == granted.body


@pytest.mark.parametrize(("key", "sign"), [("k1", 1), ("k4", -1)])
def test_lock_id_is_the_hash_of_the_key(database_url: str, rows: Rows, key: str, sign: int) -> None:
    """I5: the first 8 bytes of SHA-256(key) as a signed integer."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True)
    assert number * sign > 0, "the two keys must cover both signs"
    with rows.transaction():
        rows.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
        assert _grant_with_short_wait(database_url, key).code == "REQUEST_IN_PROGRESS"
        assert _grant_with_short_wait(database_url, f"not {key}").status == 200


def test_wait_for_an_unfinished_request_is_limited(client: Client, database_url: str, rows: Rows) -> None:
    """I8: after the limit the response is REQUEST_IN_PROGRESS. Nothing is stored, and the key works later."""
    with _unfinished_request(rows, "k1"):
        response = _grant_with_short_wait(database_url, "k1")
    assert (response.status, response.code) == (409, "REQUEST_IN_PROGRESS")
    assert int(response.headers["Retry-After"]) >= 1
    assert not _audited_outcomes(rows)
    assert client.grant("k1").status == 200


def test_replay_does_not_wait_for_the_lock(client: Client, database_url: str, rows: Rows) -> None:
    """I6: a stored response with an equal hash cannot change before it expires, so reading it needs no lock."""
    first = client.grant("k1")
    with _unfinished_request(rows, "k1"):
        assert _grant_with_short_wait(database_url, "k1").body == first.body


def test_request_waits_for_an_unfinished_one_and_replays_it(client: Client, database_url: str, rows: Rows) -> None:
    """I5, I6: the second request reads after the first has committed."""
    responses: list[Response] = []

    def send() -> None:
        responses.append(_grant_with_own_connection(database_url, "k1"))

    waiting = [threading.Thread(target=send) for _ in range(2)]
    with _unfinished_request(rows, "k1"):
        for thread in waiting:
            thread.start()
        _wait_for_waiters(rows, 2)
    for thread in waiting:
        thread.join()
    assert sorted(response.replayed for response in responses) == [False, True]
    assert len({response.body for response in responses}) == 1
    assert client.grant("k1").replayed


def test_stored_response_cannot_be_replaced_before_it_expires(client: Client, rows: Rows) -> None:
    """I6: the SQL function enforces this for every caller."""
    first = client.grant("k1")
    with pytest.raises(psycopg.Error, match="invariant broken") as caught:
        rows.execute(
            "SELECT idempotency_finish('tests', %s, 'k1', 'v1:x', 200, '{}', interval '1 h')", (f"POST {GRANTS}",)
        )
    assert caught.value.sqlstate == "GW001"
    assert client.grant("k1").body == first.body


def test_violated_invariant_rolls_back_and_logs_an_error(
    client: Client, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """I6: if the read after the lock is bypassed, the response is a 500 and nothing is written."""
    client.grant("k1")
    rows.execute("""
        CREATE OR REPLACE FUNCTION idempotency_begin(
            p_caller text, p_route text, p_key text, p_request_hash text, p_lock_wait_ms integer,
            p_any_isolation boolean DEFAULT false,
            OUT decision text, OUT status_code integer, OUT body text
        ) LANGUAGE sql AS $$ SELECT 'PROCEED', NULL::integer, NULL $$""")
    client.database.close()
    response = client.grant("k1", user_id="other")
    assert (response.status, response.code) == (500, "INTERNAL")
    assert "invariant" not in response.body
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    (error,) = [line for line in lines if line["level"] == "ERROR"]
    assert "idempotency invariant broken" in error["exception"]
    assert rows.execute("SELECT user_id FROM entitlements").fetchall() == [{"user_id": "u_123"}]


@pytest.mark.parametrize(
    ("remaining", "decision", "replaced"),
    [("-1 microsecond", "PROCEED", True), ("0", "PROCEED", True), ("1 microsecond", "IDEMPOTENCY_KEY_CONFLICT", False)],
    ids=["just expired", "expires now", "not yet expired"],
)
def test_expiry_is_exact_to_the_microsecond(rows: Rows, remaining: str, decision: str, replaced: bool) -> None:
    """I4, I6, R1, V1: check and upsert agree. now() is constant within the transaction."""
    with rows.transaction(force_rollback=True):
        rows.execute(
            "INSERT INTO idempotency_keys VALUES"
            " ('c', 'r', 'k', 'old', 200, 'old', now() - interval '1 day', now() + %s::interval)",
            (remaining,),
        )
        begin = "SELECT decision FROM idempotency_begin('c', 'r', 'k', %s, 1000)"
        assert rows.execute(begin, ("old",)).fetchall() == [{"decision": "PROCEED" if replaced else "REPLAYED"}]
        assert rows.execute(begin, ("new",)).fetchall() == [{"decision": decision}]
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


def test_sql_functions_restore_lock_timeout(database_url: str, rows: Rows) -> None:
    """I8, V1: for every outcome. Otherwise a pooled connection would keep the limit for other statements."""
    begin = "SELECT decision FROM idempotency_begin('c', 'r', %s, %s, 50)"
    finish = "SELECT idempotency_finish('c', 'r', %s, %s, 200, '{}', interval '1 h')"
    change = """
        SELECT outcome FROM change_entitlement(
          'r', %s, %s, interval '1 h', 50, '0', '0', jsonb_populate_record(
         NULL::entitlement_change, jsonb_build_object(
            'operation_id', gen_random_uuid(), 'operation', %s::text, 'user_id', 'u_1', 'stock_keeping_unit', 'item1',
            'reason', 'purchase', 'purchase_id', 'p_1', 'caller', 'c')))"""
    with psycopg.connect(database_url, autocommit=True) as session, _unfinished_request(rows, "held"):
        session.execute("SET lock_timeout = '12345ms'")
        outcomes = []
        for statement, parameters in [
            (begin, ("guarded", "h")),
            (finish, ("guarded", "h")),
            (begin, ("guarded", "h")),
            (begin, ("guarded", "other")),
            (begin, ("held", "h")),
            (change, ("k1", "h", "GRANT")),
            (change, ("k1", "h", "GRANT")),
            (change, ("k1", "other", "GRANT")),
            (change, ("k2", "h", "GRANT")),
            (change, ("k3", "h", "REVOKE")),
            (change, ("held", "h", "GRANT")),
        ]:
            outcomes += session.execute(statement, parameters).fetchall()
            assert session.execute("SHOW lock_timeout").fetchall() == [("12345ms",)]
        with session.transaction():
            session.execute(begin, ("in a transaction", "h"))
            assert session.execute("SHOW lock_timeout").fetchall() == [("50ms",)]
        assert session.execute("SHOW lock_timeout").fetchall() == [("12345ms",)]
    assert [outcome for (outcome,) in outcomes] == [
        *("PROCEED", "", "REPLAYED", "IDEMPOTENCY_KEY_CONFLICT", "REQUEST_IN_PROGRESS"),
        *("APPLIED", "REPLAYED", "IDEMPOTENCY_KEY_CONFLICT", "ENTITLEMENT_STATE_CONFLICT", "APPLIED"),
        "REQUEST_IN_PROGRESS",
    ]


def test_request_restores_lock_timeout_of_its_connection(client: Client) -> None:
    """I8, V1: the next statement of the same execution environment has the lock timeout from before."""
    with client.database.session() as session:
        before = session.execute("SHOW lock_timeout").fetchall()
    assert [client.grant("k1").status, client.grant("k1").status, client.revoke("k2").status] == [200] * 3
    with client.database.session() as session:
        assert session.execute("SHOW lock_timeout").fetchall() == before


def test_isolation_level_must_be_read_committed(rows: Rows) -> None:
    """With a snapshot from before the lock, a change could run twice."""
    rows.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        rows.execute("SELECT idempotency_begin('c', 'r', 'k', 'h', 1000)")


@pytest.mark.parametrize("status", [199, 400, 500, 503])
def test_malformed_requests_and_server_errors_cannot_be_stored(rows: Rows, status: int) -> None:
    """I3: a constraint rejects their statuses."""
    with pytest.raises(psycopg.errors.CheckViolation):
        rows.execute("SELECT idempotency_finish('c', 'r', 'k', 'h', %s, '{}', interval '1 h')", (status,))


def test_guard_works_in_any_transaction(rows: Rows) -> None:
    """Other handlers get the same guarantee with two calls around their own work."""
    begin = "SELECT decision, status_code, body FROM idempotency_begin('c', 'r', 'k', 'h', 1000)"
    with rows.transaction():
        assert rows.execute(begin).fetchall() == [{"decision": "PROCEED", "status_code": None, "body": None}]
        rows.execute("SELECT idempotency_finish('c', 'r', 'k', 'h', 201, 'done', interval '1 h')")
    assert rows.execute(begin).fetchall() == [{"decision": "REPLAYED", "status_code": 201, "body": "done"}]


def _grant_with_own_connection(database_url: str, key: str, **environ: str) -> Response:
    with Client(database_url, **environ) as client:
        return client.grant(key)


def _grant_with_short_wait(database_url: str, key: str) -> Response:
    return _grant_with_own_connection(database_url, key, IDEMPOTENCY_LOCK_WAIT="50ms")


@contextmanager
def _unfinished_request(rows: Rows, key: str) -> Iterator[None]:
    """Hold the key like a request that has not finished."""
    with rows.transaction():
        rows.execute("SELECT idempotency_begin('c', 'r', %s, 'h', 1000)", (key,))
        yield


def _wait_for_waiters(rows: Rows, count: int) -> None:
    """Wait until `count` sessions wait for an advisory lock of this database."""
    waiting = """
        SELECT count(*) AS n FROM pg_locks
         WHERE locktype = 'advisory' AND NOT granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    deadline = time.monotonic() + 60
    while rows.execute(waiting).fetchall()[0]["n"] < count:
        assert time.monotonic() < deadline, "no session waits for the lock"
        time.sleep(0.005)


def _audited_outcomes(rows: Rows) -> list[str]:
    return [row["outcome"] for row in rows.execute("SELECT outcome FROM entitlement_audit ORDER BY occurred_at")]
