"""The cost of wake-ups for grants: the same grants with a relay that is woken and with one that polls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, LiteralString

from tests.bench.fleet import Fleet
from tests.bench.raw_nats import RawNats
from tests.bench.results import Row, Section
from tests.bench.rounds import run_rounds
from tests.bench.workers import BUDGET

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_ON = "wake-up on"
_OFF = "wake-up off"
_SETTINGS = {_ON: "true", _OFF: "false"}
# The relay starts before the grants; its budget is longer than the grants take.
_HEAD_START_SECONDS = 0.3
_EXTRA_SECONDS = 1.2
_METHOD = (
    "Grants through the handler while one relay runs on the same cores. With wake-up on, a grant wakes a sleeping"
    " relay. With wake-up off, the relay polls every 200 ms. The difference is the cost of the notifications and of a"
    " relay that claims more often."
)

_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM outbox_events),
       (SELECT count(*) FROM outbox_events WHERE status = 'PUBLISHED')
"""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure grants with wake-up on and off, for each number of clients."""
    rows: list[Row] = []
    with _Grants(servers, effort) as bench:
        for clients in effort.wakeup_clients:
            title = f"grant with wake-up on against off, {clients} clients"
            contenders = {name: partial(bench.run, name, clients) for name in _SETTINGS}
            rounds = run_rounds(title, effort.rounds, contenders, progress)
            rows.append(
                Row.from_rounds(rounds, title, grantwire=_ON, limit=_OFF, target=0.9, stretch=1.0, unit="grants/s")
            )
        bench.check()
    return Section("Wake-up", rows, remarks=[_METHOD])


class _Grants:
    """Clients that send grants, and two relays, one of which runs at a time."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._seconds = effort.seconds
        self._max_clients = max(effort.wakeup_clients)
        self._url = servers.database()
        self._environ = servers.environ(self._url) | {BUDGET: f"{effort.seconds + _EXTRA_SECONDS:.3f}s"}
        self._open = ExitStack()
        self._clients = Fleet("tests.bench.callers:make_grant_call", self._max_clients, self._environ)
        self._drainer = Fleet("tests.bench.workers:make_drain_outbox_call", 1, self._environ)
        self._relays = {
            name: Fleet(
                "tests.bench.workers:make_serve_outbox_call", 1, self._environ | {"ENTITLEMENT_OUTBOX_WAKEUP": setting}
            )
            for name, setting in _SETTINGS.items()
        }
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for fleet in (self._drainer, *self._relays.values(), self._clients):
                opening.enter_context(fleet)
            opening.enter_context(self._thread)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def run(self, relay: str, clients: int) -> float:
        """Return the grants per second while this relay runs; then publish the events that remain."""
        running = self._thread.submit(self._relays[relay].run_once)
        time.sleep(_HEAD_START_SECONDS)
        rate = self._clients.measure_rate(self._seconds, clients)
        if running.done():
            raise RuntimeError("the relay ended before the grants")
        running.result()
        self._drainer.run_once()
        return rate

    def check(self) -> None:
        """Check that every grant has one event and every event one message."""
        with self._servers.owner(self._url) as owner, RawNats(self._servers.nats_admin_url) as nats:
            counts = owner.execute(_COUNTS).fetchone()
            stream = nats.request(f"$JS.API.STREAM.INFO.{self._environ['ENTITLEMENT_NATS_STREAM']}")
        totals = (*(counts or ()), stream["state"]["messages"])
        # The first call of each client, which connects, is not in the fleet's count.
        granted = self._clients.calls + self._max_clients
        if set(totals) != {granted}:
            raise RuntimeError(f"entitlements, events, published events and messages of {granted} grants: {totals}")
