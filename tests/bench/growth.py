"""What the hot paths cost against how many rows there are: one process for each size, on a database of that size.

What a relay publishes and a sweep deletes is filled up again outside of what is timed, so that every repetition finds
the same. The rows that replay and query ask for are spread over the whole table and asked for again and again: what
grows is the table, not what has to be fetched from disk.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, LiteralString

from psycopg.rows import dict_row

from tests.bench.alone import alone, become_function
from tests.bench.callers import ask, event_of, granting, handler_of, repeat
from tests.bench.fleet import Fleet
from tests.bench.results import Chart, Finding, Line, Section
from tests.bench.rounds import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from infra.local.progress import Progress
    from tests.bench.callers import Call
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_FLAT = 1.5
_EVENTS = 200
_EXPIRED_ROWS = 1_000
_RIGHTS = 10
_ASKED = 250
# Turns in a round, and fewer of what has to be filled up. In a turn, replay and query are called for so many seconds:
# the first call pays for the switch from another process.
_TURNS, _FEW = 10, 3
_BURST = 0.005
# The variable that tells a process how many rows its table has.
_SIZE = "BENCH_SIZE"
# The user of the one request that was really answered.
_USER = "u_answered"

# Ids ascend as version 7's do. Nobody reads a published event's payload.
_PUBLISHED: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, published_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'EntitlementGranted',
       'p' || lpad(n::text, 9, '0'), 1, '{}', 'PUBLISHED', false, now()
  FROM generate_series(1, %(size)s) n
"""
# A hundred to each head that failed, and all of them older than what is pending.
_PARKED: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, created_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'parked' || n / 100, n %% 100 + 1, '{}',
       CASE n %% 100 WHEN 0 THEN 'FAILED' ELSE 'PENDING' END, false, now() - interval '1 day'
  FROM generate_series(0, %(count)s - 1) n
"""
_PENDING: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready, created_at)
SELECT event_id, 'EntitlementGranted', event_id::text, 1,
       jsonb_build_object('event_id', event_id, 'event_type', 'EntitlementGranted', 'occurred_at', rfc3339(now()),
                          'user_id', event_id, 'stock_keeping_unit', 'item1', 'source', 'purchase',
                          'source_id', event_id, 'version', 1), true, now()
  FROM (SELECT gen_random_uuid() AS event_id FROM generate_series(1, %(count)s)) AS made
"""
_UNPUBLISHED: LiteralString = "SELECT count(*) FROM outbox_events WHERE status IN ('PENDING', 'IN_FLIGHT') AND ready"
# Copies of the one answer that a handler has stored, each under a key of its own.
_KEYS: LiteralString = """
INSERT INTO idempotency_keys (
       caller, route, idempotency_key, request_hash, status_code, response_body, created_at, expires_at)
SELECT %(caller)s, %(route)s, 'k' || n, %(request_hash)s, %(status_code)s, %(response_body)s, now(), now() + '1 day'
  FROM generate_series(0, %(size)s - 1) n
"""
_ANSWER: LiteralString = "SELECT caller, route, request_hash, status_code, response_body FROM idempotency_keys"
_ENTITLEMENTS: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'u' || n / %(rights)s, 'item' || n %% %(rights)s, 'ACTIVE', 1, now() FROM generate_series(0, %(size)s - 1) n
"""
_STAYING: LiteralString = """
INSERT INTO processed_events (event_id, processed_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now() FROM generate_series(1, %(size)s) n
"""
_EXPIRED: LiteralString = """
INSERT INTO processed_events (event_id, processed_at)
SELECT gen_random_uuid(), now() - interval '31 days' FROM generate_series(1, %(count)s)
"""
_LEFT: LiteralString = "SELECT count(*) FROM processed_events WHERE processed_at < now() - interval '30 days'"


def replay(_number: int) -> Call:
    """Ask for stored answers, of keys all over the table; all answers are one."""
    handler, event = handler_of("grant"), event_of("grant")
    body = handler(granting(event, "k0", _USER), None)["body"]
    keys = cycle(f"k{number}" for number in _spread())
    return lambda: repeat(handler, granting(event, next(keys), _USER), body)


def query(_number: int) -> Call:
    """Ask for the ten rights of one user after the other, of users all over the table."""
    handler, event = handler_of("query"), event_of("query")
    users = cycle(sorted({f"u{number // _RIGHTS}" for number in _spread()}))
    return lambda: ask(handler, event, next(users), _RIGHTS)


def _spread() -> range:
    size = int(os.environ[_SIZE])
    return range(0, size, max(1, size // _ASKED))


def _answer(servers: Servers) -> dict[str, object]:
    """The columns of an answer as the handler of grant stores it."""
    url = servers.database()
    alone(_grant_once, servers.environ(url))
    with servers.owner(url) as owner:
        found = owner.cursor(row_factory=dict_row).execute(_ANSWER).fetchone()
    assert found is not None
    return found


def _grant_once(environ: Mapping[str, str]) -> None:
    become_function(environ)
    answer = handler_of("grant")(granting(event_of("grant"), "k", _USER), None)
    assert answer["statusCode"] == 200, answer


class _Sized:
    """A database whose tables have so many rows."""

    def __init__(self, servers: Servers, size: int) -> None:
        self.size = size
        url = servers.database_without_flush()
        self.environ = servers.environ(url) | {_SIZE: str(size)}
        self._owner = servers.owner(url)

    def fill_outbox(self, parked: int = 0) -> Self:
        """Published events, and those that wait behind heads that failed."""
        self._owner.execute(_PUBLISHED, {"size": self.size})
        self._owner.execute(_PARKED, {"count": parked})
        return self._settled()

    def fill_tables(self, answer: Mapping[str, object]) -> Self:
        """What replay, query and sweep read."""
        self._owner.execute(_KEYS, {"size": self.size, **answer})
        self._owner.execute(_ENTITLEMENTS, {"size": self.size, "rights": _RIGHTS})
        self._owner.execute(_STAYING, {"size": self.size})
        return self._settled()

    def close(self) -> None:
        """Let the connection go."""
        self._owner.close()

    def publish(self, relay: Fleet) -> float:
        """Let a relay publish new events, one of each aggregate; seconds."""
        return self._done(relay, _PENDING, _EVENTS, _UNPUBLISHED)

    def sweep(self, sweeper: Fleet) -> float:
        """Let a sweep delete what has expired since; seconds."""
        self._owner.execute("VACUUM (INDEX_CLEANUP ON) processed_events")  # of what the last one deleted
        return self._done(sweeper, _EXPIRED, _EXPIRED_ROWS, _LEFT)

    def ask(self, caller: Fleet) -> float:
        """Let a caller ask some times; seconds of one call."""
        return median(caller.run(_BURST).latencies)

    def _done(self, worker: Fleet, fill: LiteralString, count: int, left: LiteralString) -> float:
        self._owner.execute(fill, {"count": count})
        seconds = worker.once()
        if self._owner.execute(left).fetchone() != (0,):
            raise RuntimeError("a worker has left something undone")
        return seconds

    def _settled(self) -> Self:
        """From now on nothing happens to the tables but what is measured."""
        self._owner.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
        self._owner.execute("ALTER TABLE processed_events SET (autovacuum_enabled = false)")
        self._owner.execute("VACUUM ANALYZE")
        self._owner.execute("CHECKPOINT")
        return self


_REMARKS = (
    (
        "One process for each size, on one core with PostgreSQL; the median of many calls, of the sizes in turn. "
        "A path is flat if the largest of the medians is at most 1.5 times the smallest; with parked events, "
        "the smallest without them counts too. A commit does not wait for the disk here."
    ),
    (
        "*Rows* are published events for a relay, live keys for a replay, rights for a query, and rows that stay for a "
        f"sweep. Beside them is what an invocation of a worker finds to do: {_EVENTS} events, one of each aggregate, "
        f"or {_EXPIRED_ROWS:,} expired rows. Replay and query are called through their handlers."
    ),
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Relay, replay, query and sweep with small tables and with large ones."""
    with progress.step(f"growth, tables of {', '.join(f'{size:,}' for size in effort.sizes)} rows"):
        answer = _answer(servers)
        tables = [_Sized(servers, size).fill_outbox().fill_tables(answer) for size in effort.sizes]
        parked = [_Sized(servers, size).fill_outbox(effort.parked) for size in effort.sizes]
    plain, beside = f"relay of {_EVENTS} events", f"relay of {_EVENTS} events, {effort.parked:,} parked"
    measured = partial(_measured, effort, progress)
    with _on_one_core(servers):
        lines = {
            **measured("tests.bench.workers:drain_outbox", _Sized.publish, {plain: tables, beside: parked}, _FEW),
            **measured(f"{__name__}:replay", _Sized.ask, {"replay": tables}, _TURNS),
            **measured(f"{__name__}:query", _Sized.ask, {f"query of {_RIGHTS} rights": tables}, _TURNS),
            **measured("tests.bench.workers:sweep", _Sized.sweep, {f"sweep of {_EXPIRED_ROWS:,} rows": tables}, _FEW),
        }
    for one in tables + parked:
        one.close()
    findings = [_finding(what, lines[what], lines[plain if what == beside else what]) for what in lines]
    return Section("Growth", findings=findings, charts=[_chart(lines)], remarks=list(_REMARKS))


@contextmanager
def _on_one_core(servers: Servers) -> Iterator[None]:
    """Start processes and connections on one core: from one core to another a call takes twice as long, sometimes."""
    if sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    processes = [0, servers.postgres.pid or 0]
    for process in processes:
        os.sched_setaffinity(process, {min(cores)})
    try:
        yield
    finally:
        for process in processes:
            os.sched_setaffinity(process, cores)


def _measured(
    effort: Effort,
    progress: Progress,
    work: str,
    call: Callable[[_Sized, Fleet], float],
    databases: Mapping[str, Sequence[_Sized]],
    turns: int,
) -> dict[str, dict[int, float]]:
    """Milliseconds by size, of each line; the sizes take turns, after some that do not count."""
    of = {f"{what}, {one.size:,} rows": one for what, each in databases.items() for one in each}
    with ExitStack() as stack:
        fleets = {name: stack.enter_context(Fleet(work, 1, one.environ)) for name, one in of.items()}
        contenders = {name: partial(_rate, call, one, fleets[name]) for name, one in of.items()}
        for contender in contenders.values():
            for _ in range(turns):
                contender()
        rounds = interleave("growth", effort.rounds * turns, contenders, progress)
    return {
        what: {one.size: 1000 / rounds.rate(f"{what}, {one.size:,} rows").median for one in each}
        for what, each in databases.items()
    }


def _rate(call: Callable[[_Sized, Fleet], float], database: _Sized, fleet: Fleet) -> float:
    return 1 / call(database, fleet)


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
