"""Connections: lost, refused, frozen. A caller gets an answer in time, and a retry does no harm."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from tests.support.client import Client, Response

if TYPE_CHECKING:
    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows


def test_one_connection_serves_all_requests(client: Client, rows: Rows) -> None:
    """An execution environment connects once, not with every call."""
    client.grant("k1")
    (before,) = _sessions(rows)
    client.revoke("k2")
    client.list_entitlements()
    assert _sessions(rows) == [before]


def test_a_connection_that_was_closed_is_made_again(client: Client, rows: Rows) -> None:
    """The sandbox was frozen, the server let go: the request does not notice."""
    client.grant("k1")
    (session,) = _sessions(rows)
    rows.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
    assert client.revoke("k2").status == 200
    assert _sessions(rows) != [session]


def test_a_restart_of_the_server_is_survived(server: PostgresServer) -> None:
    """After a restart the next request connects again."""
    with Client(server.url()) as client:
        assert client.grant("restart-1", user_id="restart").status == 200
        server.restart()
        assert client.revoke("restart-2", user_id="restart").status == 200
        server.kill()
        server.start()
        assert client.grant("restart-3", user_id="restart").json["version"] == 3


def test_no_database_is_a_503_at_once(server: PostgresServer) -> None:
    """503 with Retry-After, within two seconds; and the same environment recovers by itself."""
    with Client(server.url()) as fresh, Client(server.url()) as connected:
        assert connected.grant("down-1", user_id="down").status == 200
        server.stop()
        try:
            for client in (fresh, connected):
                started = time.monotonic()
                reply = client.grant("down-2", user_id="down-2")
                assert (reply.status, reply.code) == (503, "UNAVAILABLE")
                assert int(reply.headers["Retry-After"]) >= 1
                assert time.monotonic() - started < 2
        finally:
            server.start()
        assert fresh.grant("down-2", user_id="down-2").status == 200
        assert connected.grant("down-1", user_id="down").replayed


def test_a_frozen_server_is_not_waited_for(server: PostgresServer) -> None:
    """No server-side timeout fires in a process that does not run: the client has to give up by itself."""
    with (
        Client(server.url()) as fresh,
        Client(server.url(), DATABASE_STATEMENT_TIMEOUT="100ms") as connected,
        psycopg.connect(server.url(), autocommit=True) as control,
    ):
        assert connected.grant("frozen-1", user_id="frozen").status == 200
        (backend,) = [row[0] for row in control.execute(_SESSIONS).fetchall()]
        assert server.pid is not None
        frozen = [server.pid, backend]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert fresh.grant("frozen-2", user_id="frozen-2").code == "UNAVAILABLE"
            assert connected.grant("frozen-2", user_id="frozen-2").code == "UNAVAILABLE"
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        # Whether the frozen statement ran after all does not matter: the key decides.
        assert connected.grant("frozen-2", user_id="frozen-2").status == 200
        (right,) = control.execute("SELECT version FROM entitlements WHERE user_id = 'frozen-2'").fetchall()
        assert right == (1,)


def test_a_connection_killed_in_mid_request_leaves_nothing_and_the_retry_works(
    client: Client, database_url: str, rows: Rows
) -> None:
    """E6: the backend dies after it wrote the right and before it committed; the request is run once more."""
    replies: list[Response] = []

    def send() -> None:
        replies.append(client.grant("k1"))

    with psycopg.connect(database_url) as blocker:
        # The outbox row comes last: hold its table, and the request stands between its first write and its commit.
        blocker.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        request = threading.Thread(target=send)
        request.start()
        session = _until_blocked(rows)
        assert rows.execute("SELECT 1 FROM entitlements").fetchall() == []
        rows.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
        again = _until_blocked(rows, other_than=session)
        assert rows.execute("SELECT 1 FROM idempotency_keys").fetchall() == []
        assert again != session
    request.join()
    assert [(reply.status, reply.json["version"]) for reply in replies] == [(200, 1)]
    for table in ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys"):
        assert rows.execute(f"SELECT count(*) AS n FROM {table}").fetchall() == [{"n": 1}]  # noqa: S608


def test_a_row_that_is_locked_too_long_is_a_503_without_a_trace(database_url: str, client: Client) -> None:
    """Another transaction holds the right itself: nothing is stored, the same key works later."""
    client.grant("k1")
    with (
        psycopg.connect(database_url) as blocker,
        Client(database_url, IDEMPOTENCY_LOCK_WAIT="50ms") as other,
    ):
        blocker.execute("SELECT 1 FROM entitlements FOR UPDATE")
        reply = other.revoke("k2")
    assert (reply.status, reply.code) == (503, "UNAVAILABLE")
    assert "Retry-After" in reply.headers
    assert client.revoke("k2").status == 200


def test_a_slow_statement_is_cut_off(database_url: str, rows: Rows) -> None:
    """The statement timeout is set on every connection."""
    rows.execute("""
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$""")
    rows.execute("CREATE TRIGGER slow BEFORE INSERT ON entitlements FOR EACH ROW EXECUTE FUNCTION slow()")
    with Client(database_url, DATABASE_STATEMENT_TIMEOUT="100ms") as client:
        assert client.grant("k1").code == "UNAVAILABLE"
    rows.execute("DROP TRIGGER slow ON entitlements")
    with Client(database_url) as client:
        assert client.grant("k1").status == 200


def test_a_server_without_room_is_a_503(database_url: str, rows: Rows) -> None:
    """Too many connections is a state that passes."""
    rows.execute("CREATE ROLE crowded LOGIN PASSWORD 'crowded' CONNECTION LIMIT 0")
    try:
        crowded = database_url.replace(database_url.split("@", maxsplit=1)[0], "postgresql://crowded:crowded")
        with Client(crowded) as client:
            assert client.list_entitlements().code == "UNAVAILABLE"
    finally:
        rows.execute("DROP ROLE crowded")


_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'grantwire' AND datname = current_database()"


def _sessions(rows: Rows) -> list[int]:
    return [row["pid"] for row in rows.execute(_SESSIONS)]


def _until_blocked(rows: Rows, *, other_than: int | None = None) -> int:
    """The session of a request that waits for a table."""
    blocked = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'grantwire'"
        " AND datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if found := [row["pid"] for row in rows.execute(blocked) if row["pid"] != other_than]:
            return int(found[0])
        time.sleep(0.005)
    raise AssertionError("no request came to wait")
