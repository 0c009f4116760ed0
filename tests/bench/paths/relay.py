"""From the outbox to the stream: one relay against plain SQL and plain bytes, and several relays at once."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.fleet import Fleet
from tests.bench.job_queue import PGQUEUER, PgQueuer
from tests.bench.naive import NAIVE
from tests.bench.naive_workers import naive_relay
from tests.bench.outbox import BATCH, PlainSql, fill, frames
from tests.bench.raw_nats import RawNats
from tests.bench.results import Chart, Finding, Line, Row, Section
from tests.bench.rounds import interleave
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.relay_support import stream, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

_RELAY = "relay"
_LIMIT = "plain SQL, then plain bytes"
_TARGET = 0.4
_WORKERS = {1: _RELAY, 2: "2 relays", 4: "4 relays"}
_HOW = (
    f"The relay's limit claims and marks {BATCH} events at a time, with no order to keep and nothing to encode, and"
    " then publishes the same messages as ready-made bytes over a bare socket: all of them in flight together or,"
    " of the hot aggregate, each after the acknowledgement of the one before it. The two times are added. Its commits"
    " wait for the disk, as PostgreSQL's do by default; the relay's do not, because what it writes down repeats itself."
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Both rows, and what further workers bring."""
    bench, queue = _Outbox(servers), PgQueuer(servers)
    try:
        many = interleave(
            f"relay, {effort.events:,} events of as many aggregates",
            effort.rounds,
            {_LIMIT: partial(bench.limit, effort.events)}
            | {name: partial(bench.ours, effort.events, workers=count) for count, name in _WORKERS.items()}
            | {PGQUEUER: partial(queue.rate, effort.events), NAIVE: partial(bench.naive, effort.hot_events)},
            progress,
        )
        hot = interleave(
            f"relay, {effort.hot_events:,} events of one aggregate",
            effort.rounds,
            {
                _RELAY: partial(bench.ours, effort.hot_events, hot=True),
                _LIMIT: partial(bench.limit, effort.hot_events, hot=True),
            },
            progress,
        )
    finally:
        bench.close()
    return Section("Relay", _rows(effort, many, hot), _more_workers(many), [_chart(many)], [_HOW])


class _Outbox:
    """One database whose outbox is filled for each measurement, and a stream of its own for each."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._url = servers.database()
        self._owner = servers.owner(self._url)
        self._plain = PlainSql(servers.databases.url_for_owner(self._url))

    def ours(self, count: int, *, workers: int = 1, hot: bool = False) -> float:
        """Relays in processes of their own, connected before there is anything to do; events a second."""
        environ = self._servers.environ(self._url)
        self._owner.execute("TRUNCATE outbox_events")
        with Fleet("tests.bench.workers:drain_outbox", workers, environ) as fleet:
            fill(self._owner, count, hot=hot)
            seconds = fleet.once()
        self._check(environ, count, hot=hot)
        return count / seconds

    def limit(self, count: int, *, hot: bool = False) -> float:
        """The same rows and the same messages; events a second."""
        environ = self._servers.environ(self._url)
        fill(self._owner, count, hot=hot)
        self._plain.fill()
        with Stream(environ), RawNats(self._servers.nats.url) as nats:
            messages = frames(self._owner, nats, environ["ENTITLEMENT_NATS_SUBJECT"])
            seconds = self._plain.drain()
            began = time.perf_counter()
            if hot:
                nats.publish_one_by_one(messages)
            else:
                nats.publish_pipelined(messages)
            seconds += time.perf_counter() - began
            self._forget(nats, environ, count)
        return count / seconds

    def naive(self, count: int) -> float:
        """Events statement by statement; events a second."""
        environ = self._servers.environ(self._url)
        fill(self._owner, count, hot=False)
        rate = naive_relay(self._servers, environ)
        self._check(environ, count, hot=False)
        return rate

    def close(self) -> None:
        """Give the connections back."""
        self._plain.close()
        self._owner.close()

    def _check(self, environ: Mapping[str, str], count: int, *, hot: bool) -> None:
        """Every event is closed, and is in the stream once and in order."""
        statuses = self._owner.execute("SELECT status, count(*) FROM outbox_events GROUP BY status").fetchall()
        if statuses != [("PUBLISHED", count)]:
            raise RuntimeError(f"of {count} events in the outbox: {statuses}")
        if hot and versions(stream(environ)) != {"u_hot/item1": list(range(1, count + 1))}:
            raise RuntimeError("the events of the hot aggregate are not in order")
        with RawNats(self._servers.nats.url) as nats:
            self._forget(nats, environ, count)

    @staticmethod
    def _forget(nats: RawNats, environ: Mapping[str, str], count: int) -> None:
        """Look once more at a stream, and delete it: a server with many would be another server."""
        name = environ["ENTITLEMENT_NATS_STREAM"]
        found = nats.request(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"]
        if found != count:
            raise RuntimeError(f"{found} messages of {count} events")
        nats.request(f"$JS.API.STREAM.DELETE.{name}")


def _rows(effort: Effort, many: Rounds, hot: Rounds) -> list[Row]:
    of = partial(Row.of, ours=_RELAY, limit=_LIMIT, target=_TARGET, unit="events/s")
    worker = "relay, one worker"
    return [
        of(many, f"{worker}, {effort.events:,} events of as many aggregates", peer=PGQUEUER, ahead=True),
        of(hot, f"{worker}, {effort.hot_events:,} events of one hot aggregate"),
    ]


def _more_workers(rounds: Rounds) -> list[Finding]:
    more = [
        Finding(f"{name} against one, events/s", f"{rounds.ratio(name, _RELAY).median:.2f}")
        for count, name in _WORKERS.items()
        if count > 1
    ]
    return [*more, Finding.against(rounds, _RELAY, NAIVE, ahead=True)]


def _chart(rounds: Rounds) -> Chart:
    points = tuple((float(count), rounds.rate(name).median) for count, name in _WORKERS.items())
    return Chart("relay-workers", "Events a second by number of relays", "relays", "events/s", (Line("relay", points),))
