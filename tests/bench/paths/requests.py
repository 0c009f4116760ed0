"""What a caller waits for: grant, replay and query through their handlers, against pgbench with the same SQL."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, LiteralString

from grantwire.entitlements.store import CHANGE, LIST
from tests.bench.callers import KEPT_KEYS, RIGHTS, USERS, VALKEY_URL
from tests.bench.fleet import Fleet
from tests.bench.naive import NAIVE
from tests.bench.peers import POWERTOOLS
from tests.bench.pgbench import pgbench
from tests.bench.results import Chart, Finding, Line, Row, Section
from tests.bench.rounds import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.fleet import Run
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

HANDLER = "handler"
PGBENCH = "pgbench"
_STEPS = 200
_HOW = (
    "{} clients, each a process with one connection, as Lambda has them. An event goes into the handler and the"
    " answer comes out: parsing, validation, log line and metrics are in it, HTTP is not. pgbench makes the same SQL"
    " call with prepared statements; of a replay, the least that it could be: one row by its primary key."
)

# A change by somebody new each time, with a key of its own. What Python would have computed is a constant.
_CHANGE_ARGUMENTS = {
    "caller": "'local'",
    "route": "'POST /v1/entitlements/grants'",
    "key": "'k' || :number",
    "request_hash": f"'v1:{'0' * 64}'",
    "ttl": "interval '24 hours'",
    "lock_wait_ms": "2000",
    "status": "'ACTIVE'",
    "user_id": "'u' || :number",
    "stock_keeping_unit": "'item1'",
    "reason": "'purchase'",
    "purchase_id": "'p' || :number",
    "operation_id": "gen_random_uuid()",
    "trace_id": "'1-00000000-000000000000000000000000'",
}
_STORED = """
SELECT status_code, response_body FROM idempotency_keys
 WHERE caller = 'local' AND route = 'POST /v1/entitlements/grants' AND idempotency_key = 'limit' || :number
"""

_SEED_RIGHTS: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'q_' || u, 'item' || i, 'ACTIVE', 1, now() FROM generate_series(0, %s - 1) u, generate_series(1, %s) i
"""
_SEED_ANSWERS: LiteralString = """
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
    """The grant's SQL call in pgbench's words."""
    return "\\set number random(1, 9000000000000000)\n" + _with(CHANGE, _CHANGE_ARGUMENTS) + ";"


def replay_script() -> str:
    """The least that a replay can be: one row by its primary key."""
    return f"\\set number random(0, {USERS - 1})\n{_STORED};"


def query_script() -> str:
    """The query's SELECT in pgbench's words."""
    arguments = {"user_id": "('q_' || :number)", "limit": "1000", "after": "''"}
    return f"\\set number random(0, {USERS - 1})\n" + _with(LIST, arguments) + ";"


def _with(statement: str, arguments: Mapping[str, str]) -> str:
    """One of our statements with pgbench's variables in it."""
    return re.sub(r"%\((\w+)\)s", lambda found: arguments[found[1]], statement).strip()


def seed(servers: Servers, url: str) -> None:
    """What query and replay look for."""
    with servers.owner(url) as owner:
        owner.execute(_SEED_RIGHTS, (USERS, RIGHTS))
        owner.execute(_SEED_ANSWERS, (USERS,))
        owner.execute("VACUUM ANALYZE")


class Requests:
    """The clients of one database: fleets of each kind, pgbench beside them, and what all of them have changed."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._url = servers.database()
        self._runs: dict[str, Run] = {}
        self.changes = 0
        seed(servers, self._url)

    def fleet(self, work: str, count: int) -> Fleet:
        """So many clients that do this."""
        environ = self._servers.environ(self._url) | {VALKEY_URL: self._servers.valkey.url}
        return Fleet(work, count, environ)

    def run(self, name: str, fleet: Fleet, seconds: float, clients: int | None = None) -> float:
        """Let them work, and keep how long each call took; calls a second."""
        self._runs[name] = run = fleet.run(seconds, clients)
        return run.rate

    def limit(self, name: str, script: str, seconds: float, clients: int) -> float:
        """The same with clients of pgbench."""
        self._runs[name] = run = pgbench(self._servers, self._url, script, clients=clients, seconds=seconds)
        self.changes += run.calls * ("change_entitlement" in script)
        return run.rate

    def distribution(self, name: str) -> Line:
        """How long the calls took that were measured last by this name: a share of them, and the time it took."""
        latencies = sorted(self._runs[name].latencies)
        places = [round(step / _STEPS * (len(latencies) - 1)) for step in range(_STEPS + 1)]
        return Line(name, tuple((latencies[place] * 1000, (place + 1) / len(latencies)) for place in places))

    def check(self) -> None:
        """Rights, events, audit rows and stored answers: one of each for every change that was acknowledged."""
        with self._servers.owner(self._url) as owner:
            counts = owner.execute(_COUNTS).fetchone()
        if counts != (self.changes,) * 4:
            raise RuntimeError(f"{self.changes} changes; rights, events, audit rows and stored answers: {counts}")


@dataclass(frozen=True, slots=True)
class _Path:
    """A kind of request, what it is held against, and how many changes its clients have made before they are asked.

    `ahead` makes it a target to be faster than `peer`, which is one of the peers.
    """

    name: str
    script: str
    target: float | None = None
    stretch: float | None = None
    peer: str = ""
    ahead: bool = False
    peers: Mapping[str, str] = field(default_factory=dict)
    prepared: int = 0


def _paths() -> list[_Path]:
    new = {NAIVE: "tests.bench.naive:naive_grant", POWERTOOLS: "tests.bench.peers:powertools_new"}
    known = {POWERTOOLS: "tests.bench.peers:powertools_replay"}
    return [
        _Path("grant", grant_script(), 0.65, 0.75, NAIVE, peers=new),
        _Path("replay", replay_script(), peer=POWERTOOLS, ahead=True, peers=known, prepared=KEPT_KEYS),
        _Path("query", query_script()),
    ]


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """The three rows, how their latencies are spread, and what more clients bring."""
    requests = Requests(servers)
    measured = {path.name: _measured(requests, path, effort, progress) for path in _paths()}
    findings = [
        Finding.against(measured[path.name], f"{path.name}, {HANDLER}", name)
        for path in _paths()
        for name in path.peers
        if name != path.peer
    ]
    names = [f"{path.name}, {side}" for path in _paths() for side in (HANDLER, PGBENCH)]
    lines = tuple(requests.distribution(name) for name in names)
    spread = Chart("latency", f"Latency, {effort.callers} clients", "milliseconds", "share of calls", lines, log_x=True)
    charts = [spread, _crowd(requests, effort, progress)]
    rows = [_row(measured[path.name], path) for path in _paths()]
    return Section("Requests", rows, findings, charts, [_HOW.format(effort.callers)])


def _measured(requests: Requests, path: _Path, effort: Effort, progress: Progress) -> Rounds:
    handler, limit = f"{path.name}, {HANDLER}", f"{path.name}, {PGBENCH}"
    with ExitStack() as stack:
        works = {handler: f"tests.bench.callers:{path.name}", **path.peers}
        fleets = {name: stack.enter_context(requests.fleet(work, effort.callers)) for name, work in works.items()}
        contenders = {name: partial(requests.run, name, fleet, effort.seconds) for name, fleet in fleets.items()}
        contenders[limit] = partial(requests.limit, limit, path.script, effort.seconds, effort.callers)
        rounds = interleave(f"{path.name}, {effort.callers} clients", effort.rounds, contenders, progress)
        if path.name == "grant":  # each client has made one more, to connect
            requests.changes += sum(
                fleet.calls + effort.callers for name, fleet in fleets.items() if name != POWERTOOLS
            )
        requests.changes += effort.callers * path.prepared
    requests.check()
    return rounds


def _row(rounds: Rounds, path: _Path) -> Row:
    return Row.of(
        rounds,
        f"{path.name} through the handler",
        ours=f"{path.name}, {HANDLER}",
        limit=f"{path.name}, {PGBENCH}",
        target=path.target,
        stretch=path.stretch,
        unit="/s",
        peer=path.peer,
        ahead=path.ahead,
    )


def _crowd(requests: Requests, effort: Effort, progress: Progress) -> Chart:
    """Grants and queries a second by clients, ours and pgbench's."""
    most = max(effort.clients)
    sides: dict[str, Callable[[float, int], float]] = {}
    with ExitStack() as stack:
        for path in _paths():
            if path.name == "replay":
                continue
            fleet = stack.enter_context(requests.fleet(f"tests.bench.callers:{path.name}", most))
            ours, limit = f"{path.name}, {HANDLER}", f"{path.name}, {PGBENCH}"
            sides[ours] = partial(requests.run, ours, fleet)
            sides[limit] = partial(requests.limit, limit, path.script)
        rounds = interleave(
            f"{min(effort.clients)} to {most} clients",
            max(1, effort.rounds // 3),
            {f"{name} {n}": partial(side, effort.seconds, n) for n in effort.clients for name, side in sides.items()},
            progress,
        )
    lines = tuple(
        Line(name, tuple((float(n), rounds.rate(f"{name} {n}").median) for n in effort.clients)) for name in sides
    )
    return Chart("clients", "Calls a second by number of clients", "clients", "calls/s", lines, log_x=True, log_y=True)
