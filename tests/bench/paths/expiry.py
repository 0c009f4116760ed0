"""Expiry: the bounded batches of expire_entitlements, compared with one statement that records all ends."""

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

_EXPIRY = "expire_entitlements"
_LIMIT = "one statement"
_MAX_STATEMENT_MS = 1_000
_METHOD = (
    "All entitlements end at the same moment. The worker records each end with its own version, event and audit row, in"
    " batches of 500, each in its own transaction, and checks each row again after it was locked. Its limit is one"
    " statement that writes the same rows for all entitlements at once, without a check; it holds all locks until it"
    " ends. Both work on a fresh copy of the same database."
)

# One user in ten has several entitlements; the order of the ends is not that of the primary key.
_FILL: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, expires_at, purchase_id)
SELECT md5((n / 10)::text), 'item' || n %% 10, 'ACTIVE', 1, now() - interval '1 day', now() - interval '1 minute', 'p'
  FROM generate_series(1, %(count)s) n
"""
_RECORD_ALL: LiteralString = """
WITH ended AS (
  UPDATE entitlements SET status = 'EXPIRED', version = version + 1, updated_at = clock_timestamp()
   WHERE status = 'ACTIVE' AND expires_at <= now()
  RETURNING *, gen_random_uuid() AS event_id),
audited AS (
  INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                                 status, purchase_id, expires_at, changed_at)
  SELECT event_id, 'grantwire', 'EXPIRE', 'APPLIED', user_id, stock_keeping_unit, '{"reason": "schedule"}', version,
         status, purchase_id, expires_at, updated_at
    FROM ended)
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready)
SELECT event_id, 'EntitlementExpired', entitlement_aggregate_key(user_id, stock_keeping_unit), version,
       jsonb_build_object('event_id', event_id, 'event_type', 'EntitlementExpired', 'occurred_at', rfc3339(updated_at),
                          'user_id', user_id, 'stock_keeping_unit', stock_keeping_unit, 'source', 'schedule',
                          'source_id', purchase_id, 'version', version, 'expires_at', rfc3339(expires_at)), true
  FROM ended
"""
_RECORDED: LiteralString = """
SELECT (SELECT count(*) FROM entitlements WHERE status = 'EXPIRED' AND version = 2),
       (SELECT count(*) FROM outbox_events WHERE event_type = 'EntitlementExpired' AND ready),
       (SELECT count(*) FROM entitlement_audit WHERE operation = 'EXPIRE')
"""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure many ends in rounds, a million at once, and the longest statement, which bounds waits for locks."""
    title = f"expiry of {effort.ending:,} entitlements"
    with progress.step(f"{title}: fill a table to copy"):
        bench = _Entitlements(servers, effort.ending)
    rounds = run_rounds(title, effort.rounds, {_EXPIRY: bench.grantwire, _LIMIT: bench.limit}, progress)
    row = Row.from_rounds(rounds, title, grantwire=_EXPIRY, limit=_LIMIT, target=0.15, unit="ends/s")
    with progress.step(f"expiry of {effort.ending_once:,} entitlements, once"):
        large = _Entitlements(servers, effort.ending_once)
        rate = large.grantwire()
    longest = Spread(tuple(bench.longest + large.longest))
    measured = f"{longest.median:.0f} ms ({longest.low:.0f}-{longest.high:.0f})"
    findings = [
        Finding.at_most("longest statement of the expiry", measured, longest.median, _MAX_STATEMENT_MS, "ms"),
        Finding.at_most(
            f"time for each of {effort.ending_once:,} ends at once, in times of the time for each of {effort.ending:,}",
            f"{rounds.rate(_EXPIRY).median / rate:.2f} times ({rate:,.0f} ends/s)",
            rounds.rate(_EXPIRY).median / rate,
            1.5,
            "times",
        ),
    ]
    return Section("Expiry", [row], findings, remarks=[_METHOD])


class _Entitlements:
    """Database full of entitlements that have ended; each measurement works on a copy and drops it."""

    def __init__(self, servers: Servers, count: int) -> None:
        self._servers = servers
        self._count = count
        self._full = CopiedDatabase(servers, servers.database())
        self.longest: list[float] = []  # milliseconds of each run's longest statement
        with servers.owner(self._full.url) as owner:
            owner.execute(_FILL, {"count": count})
            owner.execute("VACUUM (ANALYZE, FREEZE) entitlements")

    def grantwire(self) -> float:
        """Let the worker record the ends, and return the ends per second."""
        with self._copy() as url:
            with Fleet("tests.bench.workers:make_expiry_call", 1, self._servers.environ(url)) as fleet:
                seconds, longest = self._full.time_longest_statement(fleet.run_once)
            self.longest.append(longest)
        return self._count / seconds

    def limit(self) -> float:
        """Record the ends with one statement, and return the ends per second."""
        with self._copy() as url, psycopg.connect(url, autocommit=True) as connection:
            began = time.perf_counter()
            connection.execute(_RECORD_ALL)
            return self._count / (time.perf_counter() - began)

    @contextmanager
    def _copy(self) -> Iterator[str]:
        """Create a copy, and check at the end that every end was recorded once."""
        with self._full.copy() as url:
            yield url
            with self._servers.owner(url) as owner:
                recorded = owner.execute(_RECORDED).fetchone()
            if recorded != (self._count,) * 3:
                raise RuntimeError(f"ends, events and audit rows that were recorded: {recorded}")
