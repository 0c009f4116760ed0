"""Lost, refused and unresponsive database connections: the caller gets a response in time, and a retry is safe."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from tests.support.client import Client, Response
from tests.support.waiting import until

if TYPE_CHECKING:
    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows


def test_one_connection_serves_all_requests(client: Client, rows: Rows) -> None:
    """An execution environment connects once, not for each request."""
    client.grant("k1")
    (before,) = _sessions(rows)
    client.revoke("k2")
    client.list_entitlements()
    assert _sessions(rows) == [before]


def test_request_succeeds_after_its_connection_was_closed(client: Client, rows: Rows) -> None:
    """As after a freeze of the sandbox: the request reconnects, and the caller does not notice."""
    client.grant("k1")
    (session,) = _sessions(rows)
    rows.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
    assert client.revoke("k2").status == 200
    assert _sessions(rows) != [session]


def test_request_succeeds_after_a_restart_of_postgresql(server: PostgresServer) -> None:
    """The next request reconnects after a restart and after a crash."""
    with Client(server.url()) as client:
        assert client.grant("restart-1", user_id="restart").status == 200
        server.restart()
        assert client.revoke("restart-2", user_id="restart").status == 200
        server.kill()
        server.start()
        assert client.grant("restart-3", user_id="restart").json["version"] == 3


def test_unavailable_database_returns_503_at_once(server: PostgresServer) -> None:
    """With Retry-After; the same execution environment recovers when the database is back."""
    with Client(server.url()) as fresh, Client(server.url()) as connected:
        assert connected.grant("down-1", user_id="down").status == 200
        server.stop()
        try:
            for client in (fresh, connected):
                started = time.monotonic()
                response = client.grant("down-2", user_id="down-2")
                assert (response.status, response.code) == (503, "UNAVAILABLE")
                assert int(response.headers["Retry-After"]) >= 1
                assert time.monotonic() - started < 20  # less than a connection pool waits
        finally:
            server.start()
        assert fresh.grant("down-2", user_id="down-2").status == 200
        assert connected.grant("down-1", user_id="down").replayed


def test_unresponsive_server_returns_unavailable(server: PostgresServer) -> None:
    """A stopped server process cannot enforce its own timeouts, so the client must stop waiting."""
    with (
        Client(server.url()) as fresh,
        Client(server.url(), DATABASE_STATEMENT_TIMEOUT="100ms") as connected,
        psycopg.connect(server.url(), autocommit=True) as control,
    ):
        assert connected.grant("frozen-1", user_id="frozen").status == 200
        (backend,) = [row[0] for row in control.execute(_SESSIONS).fetchall()]
        assert server.pid is not None
        pids = [server.pid, backend]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert fresh.grant("frozen-2", user_id="frozen-2").code == "UNAVAILABLE"
            assert connected.grant("frozen-2", user_id="frozen-2").code == "UNAVAILABLE"
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        # The stopped statement may have run in the end: the idempotency key prevents a second change.
        assert connected.grant("frozen-2", user_id="frozen-2").status == 200
        (entitlement,) = control.execute("SELECT version FROM entitlements WHERE user_id = 'frozen-2'").fetchall()
        assert entitlement == (1,)


def test_connection_terminated_before_commit_writes_nothing_and_is_retried(
    client: Client, database_url: str, rows: Rows
) -> None:
    """E6: the backend ends after it wrote the entitlement and before it committed; the request runs once more."""
    responses: list[Response] = []

    def send() -> None:
        responses.append(client.grant("k1"))

    with psycopg.connect(database_url) as blocker:
        # The outbox row is written last: with its table locked, the request waits between first write and commit.
        blocker.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        request = threading.Thread(target=send)
        request.start()
        session = _wait_for_blocked_session(rows)
        assert rows.execute("SELECT 1 FROM entitlements").fetchall() == []
        rows.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
        again = _wait_for_blocked_session(rows, other_than=session)
        assert rows.execute("SELECT 1 FROM idempotency_keys").fetchall() == []
        assert again != session
    request.join()
    assert [(response.status, response.json["version"]) for response in responses] == [(200, 1)]
    for table in ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys"):
        assert rows.execute(f"SELECT count(*) AS n FROM {table}").fetchall() == [{"n": 1}]  # noqa: S608


def test_row_locked_for_too_long_returns_503_and_stores_nothing(database_url: str, client: Client) -> None:
    """Another transaction has locked the entitlement; a later request with the same key succeeds."""
    client.grant("k1")
    with (
        psycopg.connect(database_url) as blocker,
        Client(database_url, IDEMPOTENCY_LOCK_WAIT="50ms") as other,
    ):
        blocker.execute("SELECT 1 FROM entitlements FOR UPDATE")
        response = other.revoke("k2")
    assert (response.status, response.code) == (503, "UNAVAILABLE")
    assert "Retry-After" in response.headers
    assert client.revoke("k2").status == 200


def test_slow_statement_is_cancelled(database_url: str, rows: Rows) -> None:
    """Every connection sets the statement timeout."""
    rows.execute("""
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$""")
    rows.execute("CREATE TRIGGER slow BEFORE INSERT ON entitlements FOR EACH ROW EXECUTE FUNCTION slow()")
    with Client(database_url, DATABASE_STATEMENT_TIMEOUT="100ms") as client:
        assert client.grant("k1").code == "UNAVAILABLE"
    rows.execute("DROP TRIGGER slow ON entitlements")
    with Client(database_url) as client:
        assert client.grant("k1").status == 200


def test_too_many_connections_returns_unavailable(database_url: str, rows: Rows) -> None:
    """The error is temporary, so the caller may retry."""
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


def _wait_for_blocked_session(rows: Rows, *, other_than: int | None = None) -> int:
    """Wait for a request that is blocked by a lock; return its backend process id."""
    blocked = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'grantwire'"
        " AND datname = current_database() AND wait_event_type = 'Lock'"
    )
    pids: list[int] = []

    def is_blocked() -> bool:
        pids.extend(row["pid"] for row in rows.execute(blocked) if row["pid"] != other_than)
        return bool(pids)

    until("a request is blocked", is_blocked)
    return pids[0]
