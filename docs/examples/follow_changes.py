"""A consumer of Grantwire's change feed that keeps a copy of all entitlements.

Run it: python follow_changes.py

    snapshot [('u_1', 'item1', 1, 'ACTIVE', None)]
    changes [('u_1', 'item1', 2, 'REVOKED', None), ('u_2', 'item1', 1, 'ACTIVE', '2027-01-31T00:00:00Z')]
    changes [('u_1', 'item1', 2, 'REVOKED', None), ('u_2', 'item1', 1, 'ACTIVE', '2027-01-31T00:00:00Z')]
    gone [('u_1', 'item1', 2, 'REVOKED', None), ('u_2', 'item1', 1, 'ACTIVE', '2027-01-31T00:00:00Z')]
    snapshot [('u_1', 'item1', 1, 'ACTIVE', None)]
"""

# shown from here
import json
import sqlite3
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

SCHEMA = """
CREATE TABLE owned (user_id TEXT, sku TEXT, version INTEGER, status TEXT, starts_at TEXT, expires_at TEXT,
                    PRIMARY KEY (user_id, sku));
CREATE TABLE feed (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), cursor TEXT);
"""
APPLY = """
INSERT INTO owned VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (user_id, sku) DO UPDATE SET version = excluded.version, status = excluded.status,
       starts_at = excluded.starts_at, expires_at = excluded.expires_at
WHERE excluded.version > owned.version
"""  # two versions of an entitlement can appear in either order: the higher one wins

RETRY_SECONDS = 1

Get = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


def connect(url: str, token: str) -> Get:
    """Return a function that sends a GET request and returns its status and body.

    It retries for ever while the API limits requests or is unavailable, and also if a gateway responds in its place.
    """

    def get(path: str, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        while True:
            request = Request(f"{url}{path}?{urlencode(query)}", headers={"Authorization": f"Bearer {token}"})
            try:
                with urlopen(request, timeout=30) as response:  # longer than wait
                    return response.status, json.load(response)
            except HTTPError as error:
                if error.code not in {429, 502, 503, 504}:
                    return error.code, json.load(error)
                seconds = error.headers.get("Retry-After", "")
                time.sleep(int(seconds) if seconds.isdigit() else RETRY_SECONDS)  # a proxy may send a date
            except (OSError, HTTPException):  # refused, reset or timed out: the API restarts, or the network is away
                time.sleep(RETRY_SECONDS)

    return get


def step(get: Get, database: sqlite3.Connection) -> str:
    """Read the snapshot, or the next changes. Call it for ever, also after a crash: the cursor is in the database."""
    row = database.execute("SELECT cursor FROM feed").fetchone()
    return read_changes(get, database, row[0]) if row else read_snapshot(get, database)


def read_changes(get: Get, database: sqlite3.Connection, cursor: str) -> str:
    """Wait for changes; apply them and store the cursor in one transaction."""
    status, page = get("/v1/changes", {"after": cursor, "limit": 1000, "wait": 20})
    with database:
        if status == 410:  # the database was restored, or the cursor is too old: begin again
            database.execute("DELETE FROM feed")
            return "gone"
        if status != 200:
            raise RuntimeError(page["message"])
        for change in page["changes"]:
            apply(database, change)
        database.execute("UPDATE feed SET cursor = ?", (page["next_after"],))
    return "changes"


def read_snapshot(get: Get, database: sqlite3.Connection) -> str:
    """Replace the copy by the current state, and store the cursor to continue from."""
    with database:
        database.execute("DELETE FROM owned")  # after a restore, versions can be lower than before
        query: dict[str, Any] = {"limit": 1000}
        while True:
            status, page = get("/v1/snapshot", query)
            if status != 200:  # also 410, if the database was restored meanwhile
                raise RuntimeError(page["message"])
            for entitlement in page["entitlements"]:
                apply(database, entitlement)
            if "next_after" not in page:
                database.execute("INSERT INTO feed VALUES (1, ?)", (page["changes_after"],))
                return "snapshot"
            query["after"] = page["next_after"]


def apply(database: sqlite3.Connection, item: dict[str, Any]) -> None:
    """Apply a change, or an entitlement of the snapshot, unless the copy has a newer version."""
    times = item.get("starts_at"), item.get("expires_at")  # missing: not limited
    database.execute(APPLY, (item["user_id"], item["stock_keeping_unit"], item["version"], item["status"], *times))


# shown to here


if __name__ == "__main__":

    def item(user_id: str, version: int, status: str) -> dict[str, Any]:
        return {"user_id": user_id, "stock_keeping_unit": "item1", "version": version, "status": status}

    granted, revoked = item("u_1", 1, "ACTIVE"), item("u_1", 2, "REVOKED")
    other = item("u_2", 1, "ACTIVE") | {"expires_at": "2027-01-31T00:00:00Z"}
    responses = iter(
        [
            (200, {"entitlements": [granted], "changes_after": "c1"}),
            (200, {"changes": [revoked, granted, other], "next_after": "c2", "has_more": False}),
            (200, {"changes": [], "next_after": "c3", "has_more": False}),
            (410, {"code": "GONE", "message": "the database was restored"}),
            (200, {"entitlements": [granted], "changes_after": "c4"}),
        ]
    )
    with sqlite3.connect(":memory:") as copy:
        copy.executescript(SCHEMA)
        for response in responses:
            done = step(lambda _path, _query, response=response: response, copy)  # type: ignore[misc]
            select = "SELECT user_id, sku, version, status, expires_at FROM owned ORDER BY user_id"
            print(done, copy.execute(select).fetchall())
