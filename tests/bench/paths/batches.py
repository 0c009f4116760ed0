"""Batches of grants through their handler, compared with single grants through theirs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, LiteralString

from tests.bench.callers import BATCH_SIZE
from tests.bench.fleet import Fleet
from tests.bench.results import Finding, Section
from tests.bench.rounds import run_rounds

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_BATCHES = f"grants in batches of {BATCH_SIZE}"
_SINGLE = "single grants"
_TARGET = 3.0
_METHOD = (
    "{} clients, each a process with one connection. Each item of a batch has an idempotency key of its own, and writes"
    " the same rows as a single grant. A client with a batch makes one call and one transaction for {} grants. Calls of"
    " the handlers, without HTTP."
)

# Every grant has one of each, and every version is the first.
_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM entitlements WHERE version = 1), (SELECT count(*) FROM outbox_events),
       (SELECT count(*) FROM entitlement_audit WHERE outcome = 'APPLIED'),
       (SELECT count(*) FROM idempotency_keys WHERE status_code = 200)
"""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure both with the same number of clients, on the same database, in the same rounds."""
    url = servers.database()
    grants = 0
    with ExitStack() as stack:
        factories = {_BATCHES: ("make_batch_call", BATCH_SIZE), _SINGLE: ("make_grant_call", 1)}
        fleets = {
            name: (stack.enter_context(_fleet(servers, url, factory, effort.callers)), size)
            for name, (factory, size) in factories.items()
        }
        contenders = {name: partial(_rate, fleet, size, effort.seconds) for name, (fleet, size) in fleets.items()}
        rounds = run_rounds(f"{_BATCHES}, {effort.callers} clients", effort.rounds, contenders, progress)
        # The first call of each client, which connects, is not in the count of its fleet.
        grants = sum((fleet.calls + effort.callers) * size for fleet, size in fleets.values())
    with servers.owner(url) as owner:
        counts = owner.execute(_COUNTS).fetchone()
    if counts != (grants,) * 4:
        raise RuntimeError(f"entitlements, events, audit rows and stored responses of {grants} grants: {counts}")
    factor = rounds.ratio(_BATCHES, _SINGLE)
    finding = Finding(
        f"{_BATCHES} against {_SINGLE}",
        f"{factor.median:.1f} [{factor.low:.1f}, {factor.high:.1f}] times as many,"
        f" {rounds.rate(_BATCHES).median:,.0f}/s against {rounds.rate(_SINGLE).median:,.0f}/s",
        f"{_TARGET:g} times",
        factor.median >= _TARGET,
    )
    return Section("Batches", findings=[finding], remarks=[_METHOD.format(effort.callers, BATCH_SIZE)])


def _fleet(servers: Servers, url: str, factory: str, clients: int) -> Fleet:
    return Fleet(f"tests.bench.callers:{factory}", clients, servers.environ(url))


def _rate(fleet: Fleet, size: int, seconds: float) -> float:
    """Run a fleet whose calls make `size` grants each, and return the grants per second."""
    return fleet.measure_rate(seconds) * size
