"""Places for requests that wait for a change: a lease in PostgreSQL for each, counted over all functions (K9, G13)."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from grantwire.errors import RateLimitedError, RetryableError
from grantwire.identifiers import uuid7_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.database import Database

# A waiting request needs this much longer than its wait, for its last statement.
_MARGIN_SECONDS = 3.0

# The SQL function (infra/sql/functions/change_feed_wait.sql) counts the places under a lock.
_TAKE = """
SELECT retry_after, is_own_limit
  FROM change_feed_wait(%(waiter_id)s::uuid, %(client_id)s, %(seconds)s::double precision, %(limit)s::integer,
                        %(client_limit)s::integer)
"""

# fetch_row needs a row, so the number of deleted rows is returned.
_LEAVE = """
WITH left_place AS (DELETE FROM change_feed_waiters WHERE waiter_id = %(waiter_id)s::uuid RETURNING waiter_id)
SELECT count(*) FROM left_place
"""


class WaitingPlaces:
    """At most `limit` requests of the installation wait at the same time, and `client_limit` of each client."""

    def __init__(self, database: Database, limit: int, client_limit: int) -> None:
        self._database = database
        self._limit = limit
        self._client_limit = client_limit

    @contextmanager
    def take(self, client_id: str, seconds: float) -> Iterator[None]:
        """Hold a place of the client during the block, for about `seconds`. Raise RateLimitedError if there is none.

        A process that is killed keeps its place until this time ends, and so does a block that raises an error.
        """
        parameters = {
            "waiter_id": uuid7_text(),
            "client_id": client_id,
            "seconds": seconds + _MARGIN_SECONDS,
            "limit": self._limit,
            "client_limit": self._client_limit,
        }
        retry_after, is_own_limit = self._database.fetch_row(_TAKE, parameters)
        if retry_after:
            of_whom = " of this client" if is_own_limit else ""
            raise RateLimitedError(
                f"too many requests{of_whom} wait for changes; send it again later, or without wait",
                retry_after=retry_after,
            )
        yield
        with suppress(RetryableError):  # the place is freed when its time ends
            self._database.fetch_row(_LEAVE, parameters)
