"""Reads pages of the change feed, and waits for a change if a request asks for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from grantwire.errors import GoneError
from grantwire.feed.cursor import DROPPED_MESSAGE, REPLACED_MESSAGE, FeedCursor, Position
from grantwire.feed.waiting import WaitingPlaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.database import Database
    from grantwire.feed.requests import ChangesRequest
    from grantwire.feed.settings import FeedSettings

# A change appears this much later than at once, at most, to a request that waits.
_POLL_SECONDS = 0.25

# The SQL function (infra/sql/functions/change_feed_page.sql) decides what a page contains, and checks the cursor.
READ_PAGE = """
SELECT outcome, identity, changes, has_more, next_transaction_id::text, next_occurred_at, next_operation_id,
       visible_before::text
  FROM change_feed_page(
         %(installation)s::text, %(transaction_id)s::text::xid8, %(occurred_at)s::timestamptz, %(operation_id)s::uuid,
         %(limit)s::integer)
"""


class _Page(NamedTuple):
    """One page: the items as JSON, whether there are more, and the cursor to continue from."""

    changes: str
    has_more: bool
    next_after: FeedCursor

    def to_json(self) -> str:
        has_more = "true" if self.has_more else "false"
        return f'{{"changes":[{self.changes}],"next_after":"{self.next_after.encode()}","has_more":{has_more}}}'


class ChangeFeed:
    """Read access to the applied changes. `clock` and `sleep` are parameters for tests."""

    def __init__(
        self,
        database: Database,
        settings: FeedSettings,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._database = database
        self._places = WaitingPlaces(database, settings.max_waiting, settings.max_waiting_per_client)
        self._clock = clock
        self._sleep = sleep

    def list(self, request: ChangesRequest, caller: str) -> str:
        """Return the JSON response body with the next changes; the docstring of the package states the errors.

        The body always has `next_after`. If there is no change and the request allows it, wait for one: a waiting
        request polls, and needs one of the places of its caller. A request that finds a change needs none.
        """
        deadline = self._clock() + request.wait
        page = self._read(request)
        if page.changes or self._clock() >= deadline:
            return page.to_json()
        with self._places.take(caller, deadline - self._clock()):
            while (left := deadline - self._clock()) > 0:
                self._sleep(min(_POLL_SECONDS, left))
                page = self._read(request)
                if page.changes:
                    break
        return page.to_json()

    def _read(self, request: ChangesRequest) -> _Page:
        position = request.after.position if request.after else None
        outcome, identity, changes, has_more, transaction_id, occurred_at, operation_id, visible_before = (
            self._database.fetch_row(
                READ_PAGE,
                {
                    "installation": request.after.installation if request.after else None,
                    "transaction_id": str(position.transaction_id) if position else None,
                    "occurred_at": position.occurred_at if position else None,
                    "operation_id": position.operation_id if position else None,
                    "limit": request.limit,
                },
            )
        )
        if outcome != "OK":
            raise GoneError({"REPLACED": REPLACED_MESSAGE, "DROPPED": DROPPED_MESSAGE}[outcome])
        following = (
            Position(int(transaction_id), occurred_at, operation_id)
            if has_more
            else Position.before(int(visible_before))
        )
        return _Page(changes, has_more, FeedCursor(identity, following))
