"""The rate and latency of checks through their handler, compared with pgbench and with the query route."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from grantwire.entitlements.checks import CHECK
from tests.bench.callers import CHECKS_PER_CALL, ENTITLEMENTS_PER_USER, USERS
from tests.bench.fleet import Fleet
from tests.bench.paths.requests import fill_in, seed
from tests.bench.pgbench import run_pgbench
from tests.bench.results import Finding, Row, Section
from tests.bench.rounds import Spread, run_rounds

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_CHECK, _QUERY, _MANY, _PGBENCH = "check", "query", f"checks of {CHECKS_PER_CALL} pairs", "check, pgbench"
_FACTORIES = {
    _CHECK: "tests.bench.callers:make_check_call",
    _QUERY: "tests.bench.callers:make_query_call",
    _MANY: "tests.bench.callers:make_checks_call",
}
_MAX_RATIO = 1.3
_METHOD = (
    "{} clients, each a process with one connection, as in the section on requests. pgbench makes the same SQL call as"
    " a check, with prepared statements. The query lists {} entitlements of a user. The clients of all paths take turns"
    " in each round, and their median latencies are compared within a round."
)


def check_script() -> str:
    """Return the SELECT of a check as a pgbench script."""
    arguments = {
        "user_id": "('q_' || :number)",
        "sku": "('item' || :item)",
        "grace": "interval '0'",
        "cache": "interval '60 seconds'",
    }
    random = f"\\set number random(0, {USERS - 1})\n\\set item random(1, {ENTITLEMENTS_PER_USER})\n"
    return random + fill_in(CHECK, arguments) + ";"


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure single checks, checks of many, and queries, in the same rounds."""
    url = servers.database()
    seed(servers, url)
    medians: dict[str, list[float]] = {name: [] for name in _FACTORIES}

    def run(name: str, fleet: Fleet) -> float:
        result = fleet.run(effort.seconds)
        medians[name].append(median(result.latencies))
        return result.rate

    def limit() -> float:
        return run_pgbench(servers, url, check_script(), clients=effort.callers, seconds=effort.seconds).rate

    with ExitStack() as stack:
        environ = servers.environ(url)
        fleets = {
            name: stack.enter_context(Fleet(factory, effort.callers, environ)) for name, factory in _FACTORIES.items()
        }
        contenders = {name: partial(run, name, fleet) for name, fleet in fleets.items()} | {_PGBENCH: limit}
        rounds = run_rounds(f"checks, {effort.callers} clients", effort.rounds, contenders, progress)
    row = Row.from_rounds(rounds, "check through the handler", grantwire=_CHECK, limit=_PGBENCH)
    factor = Spread(tuple(CHECKS_PER_CALL * ratio for ratio in rounds.ratio(_MANY, _CHECK).values))
    pairs = f"{factor.median:.1f} [{factor.low:.1f}, {factor.high:.1f}] times"
    findings = [_compare_latency(medians), Finding(f"{_MANY}, pairs per second in times of single checks", pairs)]
    return Section("Checks", [row], findings, remarks=[_METHOD.format(effort.callers, ENTITLEMENTS_PER_USER)])


def _compare_latency(medians: dict[str, list[float]]) -> Finding:
    ratio = Spread(
        tuple(check / query for check, query in zip(medians[_CHECK], medians[_QUERY], strict=True)),
    )
    times = " against ".join(f"{median(medians[name]) * 1000:.2f} ms" for name in (_CHECK, _QUERY))
    measured = f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times, {times}"
    return Finding.at_most("check, median latency in times of the query", measured, ratio.median, _MAX_RATIO, "times")
