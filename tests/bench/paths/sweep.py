"""Retention: the sweep's bounded batches against one unbounded DELETE."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.bench.fleet import Fleet
from tests.bench.results import Finding, Row, Section
from tests.bench.rounds import Spread, interleave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_SWEEP = "sweep"
_LIMIT = "one DELETE"
_LIVE = 1_000
_LONGEST_MS = 200
_DURATION = re.compile(r"duration: ([\d.]+) ms")
_HOW = (
    "The sweep deletes in batches, each a transaction, the oldest first; its limit is one DELETE without bounds, which"
    " holds its locks, and keeps VACUUM waiting, until its end. Both find the same files, copied for each measurement."
)

# Rows lie in the order in which they expire, keys in none.
_FILL: LiteralString = """
INSERT INTO idempotency_keys
SELECT 'local', 'POST /v1/entitlements/grants', md5(n::text), 'v1:' || repeat('0', 64), 200, repeat('x', 120),
       t - interval '24 hours', t
  FROM generate_series(1, %(expired)s + %(live)s) n,
       LATERAL (SELECT CASE WHEN n <= %(expired)s THEN now() - (%(expired)s - n) * interval '1 ms' - interval '1 hour'
                            ELSE now() + interval '24 hours' END AS t) AS at
"""
_DELETE: LiteralString = "DELETE FROM idempotency_keys WHERE expires_at <= now()"
_LEFT: LiteralString = "SELECT count(*) FILTER (WHERE expires_at <= now()), count(*) FROM idempotency_keys"


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """The one row, and how long others may have to wait for a lock."""
    title = f"sweep of {effort.expired:,} expired rows"
    with progress.step(f"{title}: fill a table to copy"):
        bench = _Keys(servers, effort.expired)
    rounds = interleave(title, effort.rounds, {_SWEEP: bench.ours, _LIMIT: bench.limit}, progress)
    row = Row.of(rounds, title, ours=_SWEEP, limit=_LIMIT, target=0.35, unit="rows/s")
    longest = Spread(tuple(bench.longest))
    measured = f"{longest.median:.0f} ms ({longest.low:.0f}-{longest.high:.0f})"
    finding = Finding.at_most("longest statement of the sweep", measured, longest.median, _LONGEST_MS, "ms")
    return Section("Retention", [row], [finding], remarks=[_HOW])


class _Keys:
    """A database full of idempotency keys, copied file by file for each measurement; the copies do not stay."""

    def __init__(self, servers: Servers, expired: int) -> None:
        self._servers = servers
        self._expired = expired
        self._full = servers.database()
        self._log = servers.postgres.log
        self.longest: list[float] = []  # milliseconds of each sweep's longest statement
        self._sweep(self._full)  # makes the months of the audit, which is not what is measured
        with servers.owner(self._full) as owner:
            owner.execute(_FILL, {"expired": expired, "live": _LIVE})
            owner.execute("VACUUM (ANALYZE, FREEZE) idempotency_keys")

    def ours(self) -> float:
        """The whole sweep; rows a second."""
        with self._copy() as url:
            before = self._log.stat().st_size
            taken = self._sweep(url)
            with self._log.open("rb") as log:
                log.seek(before)
                statements = _DURATION.findall(log.read().decode(errors="replace"))
            self.longest.append(max(map(float, statements)))
        return self._expired / taken

    def limit(self) -> float:
        """All at once; rows a second."""
        with self._copy() as url, psycopg.connect(url, autocommit=True) as connection:
            began = time.perf_counter()
            connection.execute(_DELETE)
            return self._expired / (time.perf_counter() - began)

    def _sweep(self, url: str) -> float:
        with Fleet("tests.bench.workers:sweep", 1, self._servers.environ(url)) as fleet:
            return fleet.once()

    @contextmanager
    def _copy(self) -> Iterator[str]:
        """A full database, in which nothing may be left in the end but what is alive."""
        name = f"gw_{uuid.uuid4().hex[:12]}"
        place = urlsplit(self._full)
        url = place._replace(path=name).geturl()
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        with psycopg.connect(self._servers.postgres.url("postgres"), autocommit=True) as admin:
            admin.execute(create.format(sql.Identifier(name), sql.Identifier(place.path.lstrip("/"))))
            # Which statement takes how long, PostgreSQL itself writes into its log.
            admin.execute(sql.SQL("ALTER DATABASE {} SET log_min_duration_statement = 0").format(sql.Identifier(name)))
            admin.execute("CHECKPOINT")
            try:
                yield url
                with self._servers.owner(url) as owner:
                    left = owner.execute(_LEFT).fetchone()
                if left != (0, _LIVE):
                    raise RuntimeError(f"expired and all rows that are left: {left}")
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
