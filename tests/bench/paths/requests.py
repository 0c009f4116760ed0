"""The rate and latency of requests: grant, replay and query through their handlers, compared with pgbench."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, LiteralString

from grantwire.entitlements.store import CHANGE, LIST
from tests.bench.alternatives import POWERTOOLS
from tests.bench.callers import ENTITLEMENTS_PER_USER, KEYS_PER_CLIENT, USERS, VALKEY_URL
from tests.bench.fleet import Fleet
from tests.bench.naive import NAIVE
from tests.bench.pgbench import run_pgbench
from tests.bench.results import Chart, Finding, Line, Row, Section
from tests.bench.rounds import run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.fleet import Run
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

HANDLER = "handler"
PGBENCH = "pgbench"
_DISTRIBUTION_STEPS = 200
_METHOD = (
    "{} clients, each a process with one connection, as on Lambda. Each call sends an event to the handler and gets its"
    " response. This includes parsing, validation, the log line and the metrics, but no HTTP. pgbench makes the same"
    " SQL call with prepared statements. For a replay, pgbench makes the minimal call: it reads one row by its primary"
    " key."
)

_CHANGE = json.dumps(
    {
        "operation": "GRANT",
        "user_id": "u%s",
        "stock_keeping_unit": "item1",
        "reason": "purchase",
        "purchase_id": "p%s",
        "operation_id": "%s",
        "caller": "local",
        "trace_id": "1-00000000-000000000000000000000000",
        "source_address": "192.0.2.1",
        "correlation_id": "%s",
    }
)
# A new user and a new key each time. Values that Python would compute are constants.
_CHANGE_ARGUMENTS = {
    "caller": "'local'",
    "route": "'POST /v1/entitlements/grants'",
    "key": "'k' || :number",
    "request_hash": f"'v1:{'0' * 64}'",
    "ttl": "interval '24 hours'",
    "lock_wait_ms": "2000",
    "grace": "'0 seconds'",
    "notice": "'72 hours'",
    "change": f"format('{_CHANGE}', :number::text, :number::text, gen_random_uuid(), gen_random_uuid())",
}
_STORED = """
SELECT status_code, response_body FROM idempotency_keys
 WHERE caller = 'local' AND route = 'POST /v1/entitlements/grants' AND idempotency_key = 'limit' || :number
"""

_SEED_ENTITLEMENTS: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'q_' || u, 'item' || i, 'ACTIVE', 1, now() FROM generate_series(0, %s - 1) u, generate_series(1, %s) i
"""
_SEED_STORED_RESPONSES: LiteralString = """
INSERT INTO idempotency_keys
SELECT 'local', 'POST /v1/entitlements/grants', 'limit' || n, 'v1:0', 200, repeat('x', 120), now(), now() + '24h'
  FROM generate_series(0, %s - 1) n
"""

_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM entitlements WHERE user_id NOT LIKE 'q\\_%'),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM idempotency_keys WHERE idempotency_key NOT LIKE 'limit%')
"""


def grant_script() -> str:
    """Return the SQL call of a grant as a pgbench script."""
    return "\\set number random(1, 9000000000000000)\n" + fill_in(CHANGE, _CHANGE_ARGUMENTS) + ";"


def replay_script() -> str:
    """Return the minimal SQL of a replay, one row by its primary key, as a pgbench script."""
    return f"\\set number random(0, {USERS - 1})\n{_STORED};"


def query_script() -> str:
    """Return the SELECT of a query as a pgbench script."""
    arguments = {
        "user_id": "('q_' || :number)",
        "limit": "1000",
        "after": "''",
        "prefix": "''",
        "status": "NULL",
        "examined": "1001",
        "grace": "interval '0'",
    }
    return f"\\set number random(0, {USERS - 1})\n" + fill_in(LIST, arguments) + ";"


def fill_in(statement: str, arguments: Mapping[str, str]) -> str:
    """Replace the parameters of a psycopg statement by SQL expressions."""
    return re.sub(r"%\((\w+)\)s", lambda match: arguments[match[1]], statement).strip()


def seed(servers: Servers, url: str) -> None:
    """Add the entitlements and the stored responses that query and replay read."""
    with servers.owner(url) as owner:
        owner.execute(_SEED_ENTITLEMENTS, (USERS, ENTITLEMENTS_PER_USER))
        owner.execute(_SEED_STORED_RESPONSES, (USERS,))
        owner.execute("VACUUM ANALYZE")


class Requests:
    """Clients of one database, fleets and pgbench; `changes` counts the changes that they made."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._url = servers.database()
        self._runs: dict[str, Run] = {}
        self.changes = 0
        seed(servers, self._url)

    def fleet(self, factory: str, count: int) -> Fleet:
        """Return a fleet of `count` clients."""
        environ = self._servers.environ(self._url) | {VALKEY_URL: self._servers.valkey.url}
        return Fleet(factory, count, environ)

    def run(self, name: str, fleet: Fleet, seconds: float, clients: int | None = None) -> float:
        """Run a fleet, keep the latencies under `name`, and return the calls per second."""
        self._runs[name] = run = fleet.run(seconds, clients)
        return run.rate

    def limit(self, name: str, script: str, seconds: float, clients: int) -> float:
        """Run pgbench, keep the latencies under `name`, and return the calls per second."""
        self._runs[name] = run = run_pgbench(self._servers, self._url, script, clients=clients, seconds=seconds)
        self.changes += run.calls * ("change_entitlement" in script)
        return run.rate

    def distribution(self, name: str) -> Line:
        """Return the latency distribution of the last run with this name: share of calls by milliseconds."""
        latencies = sorted(self._runs[name].latencies)
        steps = range(_DISTRIBUTION_STEPS + 1)
        indexes = [round(step / _DISTRIBUTION_STEPS * (len(latencies) - 1)) for step in steps]
        return Line(name, tuple((latencies[index] * 1000, (index + 1) / len(latencies)) for index in indexes))

    def check(self) -> None:
        """Check that every acknowledged change has one entitlement, event, audit row and stored response."""
        with self._servers.owner(self._url) as owner:
            counts = owner.execute(_COUNTS).fetchone()
        if counts != (self.changes,) * 4:
            parts = "entitlements, events, audit rows and stored responses"
            raise RuntimeError(f"{parts} of {self.changes} changes: {counts}")


@dataclass(frozen=True, slots=True)
class _Path:
    """Kind of request, its limit and its alternatives.

    With `must_be_faster`, being faster than `alternative` is a target. `prepared` is the number of changes that each
    client makes before the measurement.
    """

    name: str
    script: str
    target: float | None = None
    stretch: float | None = None
    alternative: str = ""
    must_be_faster: bool = False
    alternatives: Mapping[str, str] = field(default_factory=dict)
    prepared: int = 0


def _paths() -> list[_Path]:
    new = {
        NAIVE: "tests.bench.naive:make_naive_grant_call",
        POWERTOOLS: "tests.bench.alternatives:make_powertools_new_call",
    }
    known = {POWERTOOLS: "tests.bench.alternatives:make_powertools_replay_call"}
    return [
        _Path("grant", grant_script(), 0.65, 0.75, NAIVE, alternatives=new),
        _Path(
            "replay",
            replay_script(),
            alternative=POWERTOOLS,
            must_be_faster=True,
            alternatives=known,
            prepared=KEYS_PER_CLIENT,
        ),
        _Path("query", query_script()),
    ]


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure each path, its latency distribution, and its rate by the number of clients."""
    requests = Requests(servers)
    measured = {path.name: _measure_path(requests, path, effort, progress) for path in _paths()}
    findings = [
        Finding.compare(measured[path.name], f"{path.name}, {HANDLER}", name)
        for path in _paths()
        for name in path.alternatives
        if name != path.alternative
    ]
    names = [f"{path.name}, {side}" for path in _paths() for side in (HANDLER, PGBENCH)]
    lines = tuple(requests.distribution(name) for name in names)
    latency = Chart(
        "latency", f"Latency, {effort.callers} clients", "milliseconds", "share of calls", lines, log_x=True
    )
    charts = [latency, _measure_client_counts(requests, effort, progress)]
    rows = [_row(measured[path.name], path) for path in _paths()]
    return Section("Requests", rows, findings, charts, [_METHOD.format(effort.callers)])


def _measure_path(requests: Requests, path: _Path, effort: Effort, progress: Progress) -> Rounds:
    handler, limit = f"{path.name}, {HANDLER}", f"{path.name}, {PGBENCH}"
    with ExitStack() as stack:
        factories = {handler: f"tests.bench.callers:make_{path.name}_call", **path.alternatives}
        fleets = {
            name: stack.enter_context(requests.fleet(factory, effort.callers)) for name, factory in factories.items()
        }
        contenders = {name: partial(requests.run, name, fleet, effort.seconds) for name, fleet in fleets.items()}
        contenders[limit] = partial(requests.limit, limit, path.script, effort.seconds, effort.callers)
        rounds = run_rounds(f"{path.name}, {effort.callers} clients", effort.rounds, contenders, progress)
        if path.name == "grant":  # the first call of each client, which connects, is not in the fleet's count
            requests.changes += sum(
                fleet.calls + effort.callers for name, fleet in fleets.items() if name != POWERTOOLS
            )
        requests.changes += effort.callers * path.prepared
    requests.check()
    return rounds


def _row(rounds: Rounds, path: _Path) -> Row:
    return Row.from_rounds(
        rounds,
        f"{path.name} through the handler",
        grantwire=f"{path.name}, {HANDLER}",
        limit=f"{path.name}, {PGBENCH}",
        target=path.target,
        stretch=path.stretch,
        unit="/s",
        alternative=path.alternative,
        must_be_faster=path.must_be_faster,
    )


def _measure_client_counts(requests: Requests, effort: Effort, progress: Progress) -> Chart:
    """Return the chart of grants and queries per second by number of clients, for the handlers and for pgbench."""
    max_clients = max(effort.clients)
    sides: dict[str, Callable[[float, int], float]] = {}
    with ExitStack() as stack:
        for path in _paths():
            if path.name == "replay":
                continue
            fleet = stack.enter_context(requests.fleet(f"tests.bench.callers:make_{path.name}_call", max_clients))
            handler, limit = f"{path.name}, {HANDLER}", f"{path.name}, {PGBENCH}"
            sides[handler] = partial(requests.run, handler, fleet)
            sides[limit] = partial(requests.limit, limit, path.script)
        rounds = run_rounds(
            f"{min(effort.clients)} to {max_clients} clients",
            max(1, effort.rounds // 3),
            {f"{name} {n}": partial(side, effort.seconds, n) for n in effort.clients for name, side in sides.items()},
            progress,
        )
    lines = tuple(
        Line(name, tuple((float(n), rounds.rate(f"{name} {n}").median) for n in effort.clients)) for name in sides
    )
    return Chart(
        "clients", "Calls per second by number of clients", "clients", "calls/s", lines, log_x=True, log_y=True
    )
