"""The cost of the hot paths by table size: one process for each size, on a database of that size.

Events to publish and rows to sweep are added before each timed repetition, so that every repetition does the same work.
Replay, query and check read the same rows again and again, spread over the whole table. So the table grows, but not the
data that must be read from disk.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, LiteralString

import psycopg
from psycopg.rows import dict_row

from tests.bench.callers import (
    build_grant_event,
    check_item,
    load_event,
    load_handler,
    query_user,
    replay_request,
    summarize_user,
)
from tests.bench.fleet import Fleet
from tests.bench.results import Chart, Finding, Line, Section
from tests.bench.rounds import run_rounds
from tests.bench.subprocesses import run_in_subprocess, use_function_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from infra.local.progress import Progress
    from tests.bench.callers import Call
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_MAX_GROWTH = 1.5
_EVENTS = 200
_EXPIRED_ROWS = 1_000
_ENTITLEMENTS_PER_USER = 10
_READ_ROWS = 250
# Repetitions in a round: of replay and query, and of relay and sweep, which need new rows each time.
_REPETITIONS, _WORKER_REPETITIONS = 10, 3
# A repetition of replay and query makes several calls, because the first one pays for the switch between processes.
_BURST_SECONDS = 0.005
# Environment variable with the number of rows.
_SIZE = "BENCH_SIZE"
# The user of the one grant that is really made; its stored response is copied.
_USER = "u_answered"

# Ids ascend like UUIDs of version 7. The payload of a published event is never read.
_PUBLISHED: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, published_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'EntitlementGranted',
       'p' || lpad(n::text, 9, '0'), 1, '{}', 'PUBLISHED', false, now()
  FROM generate_series(1, %(size)s) n
"""
# One hundred events for each FAILED head, all older than the pending events.
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
# Copies of the one stored response, each with its own key.
_KEYS: LiteralString = """
INSERT INTO idempotency_keys (
       caller, route, idempotency_key, request_hash, status_code, response_body, created_at, expires_at)
SELECT %(caller)s, %(route)s, 'k' || n, %(request_hash)s, %(status_code)s, %(response_body)s, now(), now() + '1 day'
  FROM generate_series(0, %(size)s - 1) n
"""
_STORED_RESPONSE: LiteralString = "SELECT caller, route, request_hash, status_code, response_body FROM idempotency_keys"
_ENTITLEMENTS: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'u' || n / %(per_user)s, 'item' || n %% %(per_user)s, 'ACTIVE', 1, now() FROM generate_series(0, %(size)s - 1) n
"""
# One user has all entitlements, every other one revoked.
_OWNED: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'u_owner', 'item' || lpad(n::text, 9, '0'), CASE n %% 2 WHEN 0 THEN 'ACTIVE' ELSE 'REVOKED' END, 1, now()
  FROM generate_series(0, %(size)s - 1) n
"""
_PROJECTED: LiteralString = """
INSERT INTO user_entitlements (user_id, stock_keeping_unit, status, version, changed_at)
SELECT user_id, stock_keeping_unit, status, version, updated_at FROM entitlements
"""
_UNEXPIRED: LiteralString = """
INSERT INTO processed_events (event_id, processed_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now() FROM generate_series(1, %(size)s) n
"""
_EXPIRED: LiteralString = """
INSERT INTO processed_events (event_id, processed_at)
SELECT gen_random_uuid(), now() - interval '31 days' FROM generate_series(1, %(count)s)
"""
_NOTIFIED: LiteralString = """
INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, status,
                           next_retry_at, sent_at)
SELECT event_id, event_id, event_type, aggregate_key, 'item1', 1, '{}', 'SENT', NULL, now() FROM outbox_events
"""
# The confirmation has passed every event, so that no relay checks them meanwhile.
_CONFIRMED: LiteralString = "UPDATE outbox_confirmation SET mark = now(), checked_at = now()"
_SETTLED: LiteralString = "SELECT settled_through(10000, '0 s')"
_REMAINING: LiteralString = "SELECT count(*) FROM processed_events WHERE processed_at < now() - interval '30 days'"


def make_replay_call(_number: int) -> Call:
    """Return a call that replays the next key; the keys are spread over the table and have the same response."""
    handler, event = load_handler("grant"), load_event("grant")
    body = handler(build_grant_event(event, "k0", _USER), None)["body"]
    keys = cycle(f"k{number}" for number in _row_numbers())
    return lambda: replay_request(handler, build_grant_event(event, next(keys), _USER), body)


def make_query_call(_number: int) -> Call:
    """Return a call that queries the next user; the users are spread over the table."""
    handler, event = load_handler("query"), load_event("query")
    users = cycle(sorted({f"u{number // _ENTITLEMENTS_PER_USER}" for number in _row_numbers()}))
    return lambda: query_user(handler, event, next(users), _ENTITLEMENTS_PER_USER)


def make_check_call(_number: int) -> Call:
    """Return a call that checks the next entitlement; the entitlements are spread over the table."""
    handler, event = load_handler("check_entitlement"), load_event("check_entitlement")
    numbers = cycle(_row_numbers())

    def call() -> None:
        user, item = divmod(next(numbers), _ENTITLEMENTS_PER_USER)
        check_item(handler, event, f"u{user}", f"item{item}")

    return call


def make_summary_call(_number: int) -> Call:
    """Return a call that reads the first page of the summary of the one user who has all entitlements."""
    handler, event = load_handler("show_summary"), load_event("show_summary")
    query = {"queryStringParameters": {"limit": str(_ENTITLEMENTS_PER_USER)}, "multiValueQueryStringParameters": None}
    request = event | {"pathParameters": {"user_id": "u_owner"}} | query
    return lambda: summarize_user(handler, request, int(os.environ[_SIZE]) // 2)


def make_settled_call(_number: int) -> Call:
    """Return a call that reads up to which time every change has arrived, as the status does."""
    connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=0)

    def call() -> None:
        row = connection.execute(_SETTLED).fetchone()
        assert row is not None and row[0]["held_back_by"] is None, row  # noqa: PT018

    return call


def _row_numbers() -> range:
    size = int(os.environ[_SIZE])
    return range(0, size, max(1, size // _READ_ROWS))


def _make_stored_response(servers: Servers) -> dict[str, object]:
    """Grant an entitlement through the handler, and return the columns of its stored response."""
    url = servers.database()
    run_in_subprocess(_grant_once, servers.environ(url))
    with servers.owner(url) as owner:
        row = owner.cursor(row_factory=dict_row).execute(_STORED_RESPONSE).fetchone()
    assert row is not None
    return row


def _grant_once(environ: Mapping[str, str]) -> None:
    use_function_environment(environ)
    response = load_handler("grant")(build_grant_event(load_event("grant"), "k", _USER), None)
    assert response["statusCode"] == 200, response


class _SizedDatabase:
    """Database whose tables have `size` rows."""

    def __init__(self, servers: Servers, size: int) -> None:
        self.size = size
        url = servers.database_without_flush()
        self.environ = servers.environ(url) | {_SIZE: str(size)}
        self._owner = servers.owner(url)

    def fill_outbox(self, parked: int = 0) -> Self:
        """Add published events, and `parked` events that wait behind FAILED heads."""
        self._owner.execute(_PUBLISHED, {"size": self.size})
        self._owner.execute(_CONFIRMED)
        self._owner.execute(_PARKED, {"count": parked})
        return self._settle()

    def fill_tables(self, stored_response: Mapping[str, object]) -> Self:
        """Add the rows that replay, query, check and sweep read."""
        self._owner.execute(_KEYS, {"size": self.size, **stored_response})
        self._owner.execute(_ENTITLEMENTS, {"size": self.size, "per_user": _ENTITLEMENTS_PER_USER})
        self._owner.execute(_UNEXPIRED, {"size": self.size})
        return self._settle()

    def fill_stages(self) -> Self:
        """Add the rows of changes that have passed every stage."""
        for fill in (_PUBLISHED, _ENTITLEMENTS, _UNEXPIRED, _NOTIFIED):
            self._owner.execute(fill, {"size": self.size, "per_user": _ENTITLEMENTS_PER_USER})
        self._owner.execute(_CONFIRMED)
        return self._settle()

    def fill_read_model(self) -> Self:
        """Add the rows that summary and comparison read: the entitlements of one user, as recorded and as projected."""
        self._owner.execute(_OWNED, {"size": self.size})
        self._owner.execute(_PROJECTED)
        return self._settle()

    def close(self) -> None:
        """Close the connection."""
        self._owner.close()

    def time_relay(self, relay: Fleet) -> float:
        """Add events, one for each aggregate, let a relay publish them, and return the seconds."""
        return self._time_worker(relay, _PENDING, _EVENTS, _UNPUBLISHED)

    def time_sweep(self, sweeper: Fleet) -> float:
        """Add expired rows, let a sweep delete them, and return the seconds."""
        self._owner.execute("VACUUM (INDEX_CLEANUP ON) processed_events")  # removes the rows of the previous sweep
        return self._time_worker(sweeper, _EXPIRED, _EXPIRED_ROWS, _REMAINING)

    def time_comparison(self, sweeper: Fleet) -> float:
        """Let a sweep compare the read model with the record, and return the seconds for a thousand rows."""
        return sweeper.run_once() / self.size * 1_000

    def time_call(self, caller: Fleet) -> float:
        """Let a caller make some calls, and return the median of their seconds."""
        return median(caller.run(_BURST_SECONDS).latencies)

    def _time_worker(self, worker: Fleet, fill: LiteralString, count: int, remaining: LiteralString) -> float:
        self._owner.execute(fill, {"count": count})
        seconds = worker.run_once()
        if self._owner.execute(remaining).fetchone() != (0,):
            raise RuntimeError("the worker did not complete its work")
        return seconds

    def _settle(self) -> Self:
        """Vacuum and checkpoint now, and turn autovacuum off, so that neither disturbs a measurement."""
        self._owner.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
        self._owner.execute("ALTER TABLE processed_events SET (autovacuum_enabled = false)")
        self._owner.execute("VACUUM ANALYZE")
        self._owner.execute("CHECKPOINT")
        return self


_REMARKS = (
    (
        "One process for each table size, on the same core as PostgreSQL. The result is the median of many calls; the "
        "sizes take turns. A path is flat if its slowest size takes at most 1.5 times as long as its fastest. "
        "The relay with parked events is also compared with the fastest size without them. "
        "Commits do not wait for the disk here."
    ),
    (
        "*Rows* are published events for a relay, unexpired keys for a replay, entitlements for a query and a "
        "check, entitlements of one user for a summary and for the comparison, unexpired rows for a sweep, and rows of "
        "each table for `settled_through`, whose changes have all arrived. "
        f"In addition, each invocation of a worker has the same work: {_EVENTS} events, one for each "
        f"aggregate, or {_EXPIRED_ROWS:,} expired rows. Replay, query, check and summary are called through their "
        "handlers."
    ),
    (
        "A sweep also compares the whole read model with the record, in pages that take turns with its other work. "
        "This reads every row, so it cannot be flat; its time for each 1,000 rows must not grow."
    ),
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure relay, replay, query, check, summary and sweep with small and with large tables."""
    with progress.step(f"growth, tables of {', '.join(f'{size:,}' for size in effort.sizes)} rows"):
        stored_response = _make_stored_response(servers)
        tables = [_SizedDatabase(servers, size).fill_outbox().fill_tables(stored_response) for size in effort.sizes]
        read_models = [_SizedDatabase(servers, size).fill_read_model() for size in effort.sizes]
        stages = [_SizedDatabase(servers, size).fill_stages() for size in effort.sizes]
        parked = [_SizedDatabase(servers, size).fill_outbox(effort.parked) for size in effort.sizes]
    plain, with_parked = f"relay of {_EVENTS} events", f"relay of {_EVENTS} events, {effort.parked:,} parked"
    query, sweep = f"query of {_ENTITLEMENTS_PER_USER} entitlements", f"sweep of {_EXPIRED_ROWS:,} rows"
    settled = "settled_through"
    summary = f"summary with {_ENTITLEMENTS_PER_USER} entitlements listed"
    comparison = "comparison of the read model with the record, for each 1,000 rows"
    workers, relays = "tests.bench.workers", {plain: tables, with_parked: parked}
    measure_lines = partial(_measure_lines, effort, progress)
    with _on_one_core(servers):
        lines = {
            **measure_lines(
                f"{workers}:make_drain_outbox_call", _SizedDatabase.time_relay, relays, _WORKER_REPETITIONS
            ),
            **measure_lines(f"{__name__}:make_replay_call", _SizedDatabase.time_call, {"replay": tables}, _REPETITIONS),
            **measure_lines(f"{__name__}:make_query_call", _SizedDatabase.time_call, {query: tables}, _REPETITIONS),
            **measure_lines(f"{__name__}:make_check_call", _SizedDatabase.time_call, {"check": tables}, _REPETITIONS),
            **measure_lines(
                f"{__name__}:make_summary_call", _SizedDatabase.time_call, {summary: read_models}, _REPETITIONS
            ),
            **measure_lines(f"{__name__}:make_settled_call", _SizedDatabase.time_call, {settled: stages}, _REPETITIONS),
            **measure_lines(
                f"{workers}:make_sweep_call", _SizedDatabase.time_sweep, {sweep: tables}, _WORKER_REPETITIONS
            ),
        }
        compared = measure_lines(
            f"{workers}:make_sweep_call", _SizedDatabase.time_comparison, {comparison: read_models}, _WORKER_REPETITIONS
        )
    for database in tables + stages + parked + read_models:
        database.close()
    findings = [_flat_finding(name, lines[name], lines[plain if name == with_parked else name]) for name in lines]
    findings.append(_linear_finding(comparison, compared[comparison]))
    return Section("Growth", findings=findings, charts=[_chart(lines)], remarks=list(_REMARKS))


@contextmanager
def _on_one_core(servers: Servers) -> Iterator[None]:
    """Run new processes and connections on one core: a call between two cores sometimes takes twice as long."""
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


def _measure_lines(
    effort: Effort,
    progress: Progress,
    factory: str,
    call: Callable[[_SizedDatabase, Fleet], float],
    databases: Mapping[str, Sequence[_SizedDatabase]],
    repetitions: int,
) -> dict[str, dict[int, float]]:
    """Return the milliseconds of each line by size. The sizes take turns, after a warm-up."""
    by_name = {_contender_name(line, database.size): database for line in databases for database in databases[line]}
    with ExitStack() as stack:
        fleets = {name: stack.enter_context(Fleet(factory, 1, each.environ)) for name, each in by_name.items()}
        contenders = {name: partial(_rate, call, each, fleets[name]) for name, each in by_name.items()}
        for contender in contenders.values():
            for _ in range(repetitions):
                contender()
        rounds = run_rounds("growth", effort.rounds * repetitions, contenders, progress)
    return {
        line: {each.size: 1000 / rounds.rate(_contender_name(line, each.size)).median for each in sized}
        for line, sized in databases.items()
    }


def _contender_name(line: str, size: int) -> str:
    return f"{line}, {size:,} rows"


def _rate(call: Callable[[_SizedDatabase, Fleet], float], database: _SizedDatabase, fleet: Fleet) -> float:
    return 1 / call(database, fleet)


def _flat_finding(name: str, times: Mapping[int, float], baseline: Mapping[int, float]) -> Finding:
    """Return the finding for the slowest of `times` divided by the fastest of `times` and `baseline`."""
    return _finding(name, times, max(times.values()) / min(*times.values(), *baseline.values()), "flat")


def _linear_finding(name: str, times: Mapping[int, float]) -> Finding:
    """Return the finding for work on every row: the time for each row of the largest table against the fastest one."""
    return _finding(name, times, times[max(times)] / min(times.values()), "linear")


def _finding(name: str, times: Mapping[int, float], growth: float, shape: str) -> Finding:
    values = " · ".join(f"{value:.2f}" for value in times.values())
    target = f"{shape} within {_MAX_GROWTH}×"  # noqa: RUF001 - a number of times
    sizes = f"{min(times):,} to {max(times):,} rows"
    return Finding(f"{name}, {sizes}", f"{growth:.2f} times: {values} ms", target, growth <= _MAX_GROWTH)


def _chart(lines: Mapping[str, Mapping[int, float]]) -> Chart:
    return Chart(
        "growth",
        "Cost against table size",
        "rows",
        "ms",
        tuple(Line(name, tuple(times.items())) for name, times in lines.items()),
        log_x=True,
        log_y=True,
    )
