"""Calls the routes of the change feed in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from functions.list_changes.handler import handler
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.settings import TimeSettings
from grantwire.feed import ChangeFeed, FeedSettings, Snapshot
from grantwire.settings import load
from grantwire.wiring.routes.list_changes import ChangesRuntime
from tests.support.client import Response, event
from tests.support.contract import assert_matches_contract
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    Change = dict[str, Any]

CHANGES = "/v1/changes"
SNAPSHOT = "/v1/snapshot"
# A change becomes visible when all older transactions have ended, also those of PostgreSQL's own processes.
_VISIBLE_SECONDS = 60.0


class FeedClient:
    """Consumer of the change feed in one execution environment, with its own database connection."""

    def __init__(
        self,
        database_url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **environ: str,
    ) -> None:
        environ = {**PLAINTEXT, "DATABASE_URL": database_url, **environ}
        self.database = Database(load(DatabaseSettings, environ))
        feed = ChangeFeed(self.database, load(FeedSettings, environ), clock, sleep)
        self.runtime = ChangesRuntime(feed, Snapshot(self.database, load(TimeSettings, environ).grace))

    def __enter__(self) -> Self:
        """Do nothing: the runtime connects on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.database.close()

    def send(self, path: str, method: str = "GET", **query: str) -> Response:
        """Call a route, and check its response against the API document."""
        result = handler.with_runtime(self.runtime)(event(method, path, queryStringParameters=query or None), None)
        response = Response(result["statusCode"], result["headers"], result["body"])
        assert_matches_contract(method, path, response.status, response.headers, response.body)
        return response

    def changes(self, after: str | None = None, **query: str) -> Response:
        """GET a page of the change feed."""
        return self.send(CHANGES, **({"after": after} if after else {}), **query)

    def snapshot(self, after: str | None = None, **query: str) -> Response:
        """GET a page of the snapshot."""
        return self.send(SNAPSHOT, **({"after": after} if after else {}), **query)

    def follow(self, after: str | None, count: int, *, limit: int = 1000) -> tuple[list[Change], str | None]:
        """Read `count` changes and what else there is already; return them with the cursor after them."""
        changes: list[Change] = []
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while True:
            page = self.changes(after, limit=str(limit)).json
            changes += page["changes"]
            after = page["next_after"]
            if not page["has_more"] and (len(changes) >= count or time.monotonic() > deadline):
                return changes, after

    def read_snapshot(self, *, limit: int = 1000) -> tuple[list[Change], str]:
        """Read all pages of the snapshot; return the entitlements and the cursor of the feed to continue from."""
        page = self.snapshot(limit=str(limit)).json
        entitlements, first = list(page["entitlements"]), page["changes_after"]
        while "next_after" in page:
            page = self.snapshot(page["next_after"], limit=str(limit)).json
            entitlements += page["entitlements"]
            assert page["changes_after"] == first
        return entitlements, first
