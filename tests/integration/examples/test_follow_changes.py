"""The consumer of docs/events.md, against the routes of the change feed (K9)."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from docs.examples.follow_changes import SCHEMA, connect, step
from tests.support.feed import FeedClient
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docs.examples.follow_changes import Get
    from tests.integration.conftest import Rows
    from tests.support.client import Client


@pytest.fixture
def copy() -> Iterator[sqlite3.Connection]:
    """The database of the consumer."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        yield database


@pytest.fixture
def get(database_url: str) -> Iterator[Get]:
    """The API, without a wait, so that a test does not have to end it."""
    with FeedClient(database_url) as feed:

        def send(path: str, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            response = feed.send(path, **{name: str(value) for name, value in (query | {"limit": 2}).items()})
            return response.status, response.json

        yield lambda path, query: send(path, {name: value for name, value in query.items() if name != "wait"})


def owned(database: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Return the copy of the consumer."""
    return database.execute("SELECT * FROM owned ORDER BY user_id, sku").fetchall()


def recorded(rows: Rows) -> list[tuple[Any, ...]]:
    """Return the system of record."""
    table = rows.execute(
        "SELECT user_id, stock_keeping_unit, version, status, rfc3339(starts_at) AS start, rfc3339(expires_at) AS end"
        " FROM entitlements ORDER BY 1, 2"
    )
    return [tuple(row.values()) for row in table]


def follow(get: Get, copy: sqlite3.Connection, rows: Rows) -> list[str]:
    """Run the consumer until its copy is complete; return what it did."""
    steps: list[str] = []
    while owned(copy) != recorded(rows) and len(steps) < 100:
        steps.append(step(get, copy))
    return steps


@newest_postgres
def test_consumer_has_the_exact_table(get: Get, copy: sqlite3.Connection, client: Client, rows: Rows) -> None:
    """K9: from the snapshot, then from the feed, page by page."""
    for number in range(5):
        client.grant(f"a{number}", user_id=f"u{number}")
    assert follow(get, copy, rows) == ["snapshot"]
    for number in range(3, 8):
        client.revoke(f"b{number}", user_id=f"u{number}")
        client.grant(f"c{number}", user_id=f"u{number}", expires_at="2096-01-31T00:00:00Z")
    assert set(follow(get, copy, rows)) == {"changes"}
    assert owned(copy) == recorded(rows)
    assert len(owned(copy)) == 8


@newest_postgres
def test_consumer_begins_again_after_a_restore(get: Get, copy: sqlite3.Connection, client: Client, rows: Rows) -> None:
    """K9: also if a version is lower than before, because the restore lost changes."""
    client.grant("k1")
    client.revoke("k2")
    follow(get, copy, rows)
    rows.execute("UPDATE entitlements SET version = 1, status = 'ACTIVE'")  # as after a restore
    rows.execute("SELECT installation_renew()")
    assert follow(get, copy, rows) == ["gone", "snapshot"]
    assert owned(copy) == [("u_123", "item1", 1, "ACTIVE", None, None)]


def test_requests_are_sent_with_a_token_and_repeated_while_the_api_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """K9: the part of the example that the other tests replace; also after a refused and a cut connection."""
    seen: list[tuple[str, dict[str, str], str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            seen.append((parts.path, dict(parse_qsl(parts.query)), self.headers["Authorization"]))
            status = {1: 429, 2: 503, 3: 502, 4: 504, 6: 200, 7: 200}.get(len(seen), 410)
            if len(seen) == 5:
                return  # and the connection is closed
            body = json.dumps({"code": "GONE", "message": "m"} if status == 410 else {"changes": []}).encode()
            self.send_response(status)
            if status in {429, 503}:  # others send none; a proxy may send a date
                self.send_header("Retry-After", "0" if status == 429 else "Wed, 21 Oct 2026 07:28:00 GMT")
            cut = 100 if len(seen) == 6 else 0  # bytes of the body that are not sent
            self.send_header("Content-Length", str(len(body) + cut))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False) as server:
        server.server_bind()  # connections are refused until it is activated
        thread = threading.Thread(target=server.serve_forever)

        def sleep(_seconds: float) -> None:
            if not thread.ident:
                server.server_activate()
                thread.start()

        monkeypatch.setattr("docs.examples.follow_changes.time.sleep", sleep)
        get = connect(f"http://127.0.0.1:{server.server_port}/local", "gw_dev_x")
        try:
            responses = [get("/v1/changes", {"after": "c", "limit": 1000}) for _ in range(2)]
        finally:
            if thread.ident:
                server.shutdown()
                thread.join(timeout=60)
    assert responses == [(200, {"changes": []}), (410, {"code": "GONE", "message": "m"})]
    assert set(map(str, seen)) == {
        str(("/local/v1/changes", {"after": "c", "limit": "1000"}, "Bearer gw_dev_x")),
    }
