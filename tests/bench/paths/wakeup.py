"""What waking the relay costs those who grant: the same grants beside a relay that is woken and one that polls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, LiteralString

from tests.bench.fleet import Fleet
from tests.bench.raw_nats import RawNats
from tests.bench.results import Row, Section
from tests.bench.rounds import interleave
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
# The relay begins before the grants, and works for so much longer in all.
_HEAD_START = 0.3
_LONGER = 1.2
_HOW = (
    "Grants through the handler while one relay works beside them on the same cores: woken, or polling every 200 ms,"
    " when no grant notifies. The difference is what notifying costs, and what a relay takes that looks more often."
)

_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM outbox_events),
       (SELECT count(*) FROM outbox_events WHERE status = 'PUBLISHED')
"""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """A row for each number of clients."""
    rows: list[Row] = []
    with _Grants(servers, effort) as bench:
        for clients in effort.wakeup_clients:
            title = f"grant with wake-up on against off, {clients} clients"
            contenders = {name: partial(bench.run, name, clients) for name in _SETTINGS}
            rounds = interleave(title, effort.rounds, contenders, progress)
            rows.append(Row.of(rounds, title, ours=_ON, limit=_OFF, target=0.9, stretch=1.0, unit="grants/s"))
        bench.check()
    return Section("Wake-up", rows, remarks=[_HOW])


class _Grants:
    """Clients that grant, and two relays of which one works at a time."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._seconds = effort.seconds
        self._most = max(effort.wakeup_clients)
        self._url = servers.database()
        self._environ = servers.environ(self._url) | {BUDGET: f"{effort.seconds + _LONGER:.3f}s"}
        self._open = ExitStack()
        self._clients = Fleet("tests.bench.callers:grant", self._most, self._environ)
        self._drainer = Fleet("tests.bench.workers:drain_outbox", 1, self._environ)
        self._relays = {
            name: Fleet("tests.bench.workers:serve_outbox", 1, self._environ | {"ENTITLEMENT_OUTBOX_WAKEUP": setting})
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
        """Grants a second beside this relay; what it leaves is published before the next begins."""
        working = self._thread.submit(self._relays[relay].once)
        time.sleep(_HEAD_START)
        rate = self._clients.rate(self._seconds, clients)
        if working.done():
            raise RuntimeError("the relay ended before the grants")
        working.result()
        self._drainer.once()
        return rate

    def check(self) -> None:
        """Every grant has become one event, and every event one message."""
        with self._servers.owner(self._url) as owner, RawNats(self._servers.nats.url) as nats:
            counts = owner.execute(_COUNTS).fetchone()
            stream = nats.request(f"$JS.API.STREAM.INFO.{self._environ['ENTITLEMENT_NATS_STREAM']}")
        found = (*(counts or ()), stream["state"]["messages"])
        # The first call of each client connects, and is not counted.
        granted = self._clients.calls + self._most
        if set(found) != {granted}:
            raise RuntimeError(f"of {granted} grants: rights, events, published, messages {found}")
