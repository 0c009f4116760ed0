"""Retention: the bounded batches of the sweep, compared with one unbounded DELETE."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, LiteralString

import psycopg

from tests.bench.copies import CopiedDatabase
from tests.bench.fleet import Fleet
from tests.bench.results import Finding, Row, Section
from tests.bench.rounds import Spread, run_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_SWEEP = "sweep"
_LIMIT = "one DELETE"
_UNEXPIRED_ROWS = 1_000
_MAX_STATEMENT_MS = 200
_METHOD = (
    "The sweep deletes the oldest rows first, in batches, each in its own transaction. Its limit is one DELETE of all"
    " rows, which holds its locks and blocks VACUUM until it ends. Both work on a fresh copy of the same database."
)

# The rows are stored in the order in which they expire; the keys have no order.
_FILL: LiteralString = """
INSERT INTO idempotency_keys
SELECT 'local', 'POST /v1/entitlements/grants', md5(n::text), 'v1:' || repeat('0', 64), 200, repeat('x', 120),
       t - interval '24 hours', t
  FROM generate_series(1, %(expired)s + %(live)s) n,
       LATERAL (SELECT CASE WHEN n <= %(expired)s THEN now() - (%(expired)s - n) * interval '1 ms' - interval '1 hour'
                            ELSE now() + interval '24 hours' END AS t) AS at
"""
_DELETE: LiteralString = "DELETE FROM idempotency_keys WHERE expires_at <= now()"
_REMAINING: LiteralString = "SELECT count(*) FILTER (WHERE expires_at <= now()), count(*) FROM idempotency_keys"


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure the sweep and its longest statement, which bounds how long others wait for a lock."""
    title = f"sweep of {effort.expired:,} expired rows"
    with progress.step(f"{title}: fill a table to copy"):
        bench = _Keys(servers, effort.expired)
    rounds = run_rounds(title, effort.rounds, {_SWEEP: bench.grantwire, _LIMIT: bench.limit}, progress)
    row = Row.from_rounds(rounds, title, grantwire=_SWEEP, limit=_LIMIT, target=0.35, unit="rows/s")
    longest = Spread(tuple(bench.longest))
    measured = f"{longest.median:.0f} ms ({longest.low:.0f}-{longest.high:.0f})"
    finding = Finding.at_most("longest statement of the sweep", measured, longest.median, _MAX_STATEMENT_MS, "ms")
    return Section("Retention", [row], [finding], remarks=[_METHOD])


class _Keys:
    """Database full of idempotency keys; each measurement works on a copy and drops it."""

    def __init__(self, servers: Servers, expired: int) -> None:
        self._servers = servers
        self._expired = expired
        self._full = CopiedDatabase(servers, servers.database())
        self.longest: list[float] = []  # milliseconds of each sweep's longest statement
        self._sweep(self._full.url)  # creates the audit partitions, which is not measured
        with servers.owner(self._full.url) as owner:
            owner.execute(_FILL, {"expired": expired, "live": _UNEXPIRED_ROWS})
            owner.execute("VACUUM (ANALYZE, FREEZE) idempotency_keys")

    def grantwire(self) -> float:
        """Let a sweep delete the expired rows, and return the rows per second."""
        with self._copy() as url:
            seconds, longest = self._full.time_longest_statement(lambda: self._sweep(url))
            self.longest.append(longest)
        return self._expired / seconds

    def limit(self) -> float:
        """Delete the expired rows with one statement, and return the rows per second."""
        with self._copy() as url, psycopg.connect(url, autocommit=True) as connection:
            began = time.perf_counter()
            connection.execute(_DELETE)
            return self._expired / (time.perf_counter() - began)

    def _sweep(self, url: str) -> float:
        with Fleet("tests.bench.workers:make_sweep_call", 1, self._servers.environ(url)) as fleet:
            return fleet.run_once()

    @contextmanager
    def _copy(self) -> Iterator[str]:
        """Create a copy, and check at the end that only the unexpired rows remain."""
        with self._full.copy() as url:
            yield url
            with self._servers.owner(url) as owner:
                remaining = owner.execute(_REMAINING).fetchone()
            if remaining != (0, _UNEXPIRED_ROWS):
                raise RuntimeError(f"expired rows and all rows that remain: {remaining}")
