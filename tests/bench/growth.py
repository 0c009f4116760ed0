"""What the hot paths cost against how many rows there are: one client, in this process, one database for each size.

A claim is finalised and a sweep's batch is filled up again outside of what is timed, so that every repetition finds the
same. The rows that replay and query ask for are spread over the whole table and asked for again and again: what grows
is the table, not what has to be fetched from disk.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, LiteralString

from psycopg import sql

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements import Change, Entitlements, Operation, Page
from grantwire.idempotency.requests import IdempotencySettings, RequestIdentity
from grantwire.outbox import store
from grantwire.retention.policies import POLICIES, delete_batch
from grantwire.retention.settings import RetentionSettings
from grantwire.settings import load
from grantwire.workers.leases import Claim
from tests.bench.results import Chart, Finding, Line, Section
from tests.bench.rounds import interleave
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_FLAT = 1.5
_CLAIM = 200
_LEASE = timedelta(seconds=30)
_RIGHTS = 10
_ASKED = 250
# Turns in a round, and fewer of what is slow to undo. What takes a fraction of a millisecond is called several times in
# a turn: the first call pays for the switch from another connection's process.
_TURNS, _FEW = 10, 3
_BURST = 20
_BODY = '{"status":"ACTIVE"}'

# Ids ascend as version 7's do. Nobody reads a published event's payload.
_PUBLISHED: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, published_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'EntitlementGranted',
       'p' || lpad(n::text, 9, '0'), 1, '{}', 'PUBLISHED', false, now()
  FROM generate_series(1, %(size)s) n
"""
_PENDING: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready, created_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'u' || n, 1,
       jsonb_build_object('event_type', 'EntitlementGranted', 'user_id', 'u' || n, 'stock_keeping_unit', 'item1',
                          'source', 'purchase', 'source_id', 'p' || n, 'version', 1), true,
       now() + n * interval '1 microsecond'
  FROM generate_series(1, %(count)s) n
"""
# A hundred to each head that failed, and all of them older than what is pending.
_PARKED: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, created_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'parked' || n / 100, n %% 100 + 1, '{}',
       CASE n %% 100 WHEN 0 THEN 'FAILED' ELSE 'PENDING' END, false, now() - interval '1 day'
  FROM generate_series(0, %(count)s - 1) n
"""
_KEYS: LiteralString = """
INSERT INTO idempotency_keys
SELECT 'local', 'route', 'k' || n, 'v1:0', 200, %(body)s, now(), now() + interval '1 day'
  FROM generate_series(0, %(size)s - 1) n
"""
_ENTITLEMENTS: LiteralString = """
INSERT INTO entitlements
SELECT 'u' || n / %(rights)s, 'item' || n %% %(rights)s, 'ACTIVE', 1, now() FROM generate_series(0, %(size)s - 1) n
"""
_STAYING: LiteralString = """
INSERT INTO processed_events
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now() FROM generate_series(1, %(size)s) n
"""
_EXPIRED: LiteralString = """
INSERT INTO processed_events SELECT gen_random_uuid(), now() - %(age)s FROM generate_series(1, %(count)s)
"""


class _Sized:
    """A database whose tables have so many rows, and this process's one connection to it."""

    def __init__(self, servers: Servers, size: int) -> None:
        self.size = size
        url = servers.database()
        self._owner = servers.owner(url)
        # How long the disk takes for a flush is not a matter of the table's size.
        self._owner.execute(
            sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(self._owner.info.dbname))
        )
        self._database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url}))
        self._entitlements = Entitlements(self._database, load(IdempotencySettings, {}))
        self._retention = load(RetentionSettings, {})
        (self._policy,) = (policy for policy in POLICIES if policy.name == "processed_events")
        step = max(1, size // _ASKED)
        self._keys = cycle(range(0, size, step))
        self._users = cycle(sorted({n // _RIGHTS for n in range(0, size, step)}))

    def fill_outbox(self, claims: int, parked: int = 0) -> Self:
        """Published events, those that wait behind heads that failed, and enough for so many claims."""
        self._owner.execute(_PUBLISHED, {"size": self.size})
        self._owner.execute(_PARKED, {"count": parked})
        self._owner.execute(_PENDING, {"count": claims * _CLAIM})
        return self._settled()

    def fill_tables(self) -> Self:
        """What replay, query and sweep read."""
        self._owner.execute(_KEYS, {"size": self.size, "body": _BODY})
        self._owner.execute(_ENTITLEMENTS, {"size": self.size, "rights": _RIGHTS})
        self._owner.execute(_STAYING, {"size": self.size})
        self._fill_up()
        return self._settled()

    def close(self) -> None:
        """Let the connections go."""
        self._database.close()
        self._owner.close()

    @property
    def process(self) -> int:
        """PostgreSQL's process behind the connection."""
        with self._database.session() as tx:
            return tx.info.backend_pid

    def claim(self) -> float:
        """Claim 200 events, as the relay does; what follows is not timed."""
        token = Claim("bench")
        with self._database.session() as tx:
            began = time.perf_counter()
            events = store.claim(tx, token, batch=_CLAIM, lease=_LEASE)
            seconds = time.perf_counter() - began
            assert len(events) == _CLAIM
            store.complete(tx, token, [event.event_id for event in events])
        return seconds

    def replay(self) -> float:
        """Ask for a stored answer."""
        identity = RequestIdentity("local", "route", f"k{next(self._keys)}", "v1:0")
        began = time.perf_counter()
        answer = self._entitlements.change(Operation.GRANT, Change("u", "s", "r", "p"), identity, "1-0-0")
        seconds = time.perf_counter() - began
        assert answer.replayed and answer.body == _BODY  # noqa: PT018 - one answer
        return seconds

    def query(self) -> float:
        """Ask for the ten rights of one user."""
        page = Page(f"u{next(self._users)}", 1000, "")
        began = time.perf_counter()
        body = self._entitlements.of_user(page)
        seconds = time.perf_counter() - began
        assert body.count('"ACTIVE"') == _RIGHTS
        return seconds

    def sweep(self) -> float:
        """Delete one batch from the inbox."""
        with self._database.session() as tx:
            began = time.perf_counter()
            with tx.transaction():
                deleted = delete_batch(tx, self._policy, self._retention)
            seconds = time.perf_counter() - began
        assert deleted == self._retention.batch_size
        self._fill_up()
        return seconds

    def _settled(self) -> Self:
        """From now on nothing happens to the tables but what is measured."""
        self._owner.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
        self._owner.execute("ALTER TABLE processed_events SET (autovacuum_enabled = false)")
        self._owner.execute("VACUUM ANALYZE")
        self._owner.execute("CHECKPOINT")
        return self

    def _fill_up(self) -> None:
        """A batch that may go, where the last one was."""
        self._owner.execute("VACUUM (INDEX_CLEANUP ON) processed_events")
        batch = self._retention.batch_size
        self._owner.execute(_EXPIRED, {"age": self._retention.inbox + timedelta(days=1), "count": batch})


_REMARKS = (
    (
        "One client in one process, on one core with PostgreSQL's; the median of many calls, of the sizes in turn. "
        "A path is flat if the largest of the medians is at most 1.5 times the smallest; with parked events, "
        "the smallest of the claims without them counts too. A commit does not wait for the disk here."
    ),
    (
        "*Rows* are published events for a claim, live keys for a replay, rights for a query, and rows that stay for a "
        "sweep. Beside them is what a claim or a sweep takes: pending events, one of each aggregate, and expired rows."
    ),
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Claim, replay, query and sweep in small tables and in large ones."""
    claims = (effort.rounds + 1) * _TURNS
    with progress.step(f"growth, tables of {', '.join(f'{size:,}' for size in effort.sizes)} rows"):
        tables = [_Sized(servers, size).fill_outbox(claims).fill_tables() for size in effort.sizes]
        parked = [_Sized(servers, size).fill_outbox(claims, effort.parked) for size in effort.sizes]
    claim, beside = f"claim of {_CLAIM} events", f"claim of {_CLAIM} events, {effort.parked:,} parked"
    measured = partial(_measured, effort, progress)
    with _on_one_core(one.process for one in tables + parked):
        lines = {
            **measured(_Sized.claim, {claim: tables, beside: parked}),
            **measured(_Sized.replay, {"replay": tables}, burst=_BURST),
            **measured(_Sized.query, {f"query of {_RIGHTS} rights": tables}, burst=_BURST),
            **measured(_Sized.sweep, {"batch of the sweep": tables}, turns=_FEW),
        }
    for one in tables + parked:
        one.close()
    servers.drop_databases()
    findings = [_finding(what, lines[what], lines[claim if what == beside else what]) for what in lines]
    return Section("Growth", findings=findings, charts=[_chart(lines)], remarks=list(_REMARKS))


@contextmanager
def _on_one_core(processes: Iterable[int]) -> Iterator[None]:
    """Two processes that talk from one core to another take twice as long, and some are put there and some are not."""
    if sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    for process in (os.getpid(), *processes):
        os.sched_setaffinity(process, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _measured(
    effort: Effort,
    progress: Progress,
    call: Callable[[_Sized], float],
    databases: Mapping[str, Sequence[_Sized]],
    *,
    turns: int = _TURNS,
    burst: int = 1,
) -> dict[str, dict[int, float]]:
    """Milliseconds by size, of each line; the sizes take turns, after some that do not count."""
    of = {(what, one.size): one for what, each in databases.items() for one in each}
    names = {place: f"{place[0]}, {place[1]:,} rows" for place in of}
    contenders = {names[place]: partial(_rate, call, one, burst) for place, one in of.items()}
    for contender in contenders.values():
        for _ in range(turns):
            contender()
    rounds = interleave("growth", effort.rounds * turns, contenders, progress)
    return {
        what: {one.size: 1000 / rounds.rate(names[what, one.size]).median for one in each}
        for what, each in databases.items()
    }


def _rate(call: Callable[[_Sized], float], database: _Sized, burst: int) -> float:
    return 1 / median(call(database) for _ in range(burst))


def _finding(what: str, times: Mapping[int, float], best: Mapping[int, float]) -> Finding:
    """How far the slowest is from the fastest, of these or of those that they should be as fast as."""
    spread = max(times.values()) / min(*times.values(), *best.values())
    each = " · ".join(f"{value:.2f}" for value in times.values())
    target = "flat within 1.5×"  # noqa: RUF001 - a number of times
    span = f"{min(times):,} to {max(times):,} rows"
    return Finding(f"{what}, {span}", f"{spread:.2f} times: {each} ms", target, spread <= _FLAT)


def _chart(lines: Mapping[str, Mapping[int, float]]) -> Chart:
    return Chart(
        "growth",
        "Cost against table size",
        "rows",
        "ms",
        tuple(Line(what, tuple(times.items())) for what, times in lines.items()),
        log_x=True,
        log_y=True,
    )
