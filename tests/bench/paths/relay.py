"""From the outbox to the stream: one relay, compared with plain SQL and a bare socket, and several relays."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.fleet import Fleet
from tests.bench.job_queue import PGQUEUER, PgQueuer
from tests.bench.naive import NAIVE
from tests.bench.naive_workers import naive_relay
from tests.bench.outbox import BATCH_SIZE, PlainSql, encode_frames, fill
from tests.bench.raw_nats import RawNats
from tests.bench.results import FASTER, Chart, Finding, Line, Row, Section
from tests.bench.rounds import run_rounds
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.relay_support import read_stream, versions_by_aggregate

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
_METHOD = (
    f"The limit of the relay claims and marks {BATCH_SIZE} events at a time, without keeping an order and without"
    " encoding. Then it publishes the same messages as prepared bytes over a bare socket: all in flight together, or,"
    " for the hot aggregate, each after the acknowledgement of the previous one. The two times are added. The commits"
    " of the limit wait for the disk, as is PostgreSQL's default. The relay's commits do not wait: after a crash it"
    " publishes an event again, and the stream discards the duplicate."
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure one relay with many aggregates and with one, and several relays."""
    bench, queue = _Outbox(servers), PgQueuer(servers)
    try:
        many = run_rounds(
            f"relay, {effort.events:,} events of as many aggregates",
            effort.rounds,
            {_LIMIT: partial(bench.limit, effort.events)}
            | {name: partial(bench.grantwire, effort.events, workers=count) for count, name in _WORKERS.items()}
            | {PGQUEUER: partial(queue.measure_rate, effort.events), NAIVE: partial(bench.naive, effort.hot_events)},
            progress,
        )
        hot = run_rounds(
            f"relay, {effort.hot_events:,} events of one aggregate",
            effort.rounds,
            {
                _RELAY: partial(bench.grantwire, effort.hot_events, hot=True),
                _LIMIT: partial(bench.limit, effort.hot_events, hot=True),
            },
            progress,
        )
    finally:
        bench.close()
    return Section("Relay", _rows(effort, many, hot), _compare_workers(many), [_chart(many)], [_METHOD])


class _Outbox:
    """Database whose outbox is filled before each measurement; each measurement has its own stream."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._url = servers.database()
        self._owner = servers.owner(self._url)
        self._plain = PlainSql(servers.databases.url_for_owner(self._url))

    def grantwire(self, count: int, *, workers: int = 1, hot: bool = False) -> float:
        """Let relays publish the events, and return the events per second.

        Each relay runs in its own process and connects before the outbox is filled.
        """
        environ = self._servers.environ(self._url)
        self._owner.execute("TRUNCATE outbox_events")
        with Fleet("tests.bench.workers:make_drain_outbox_call", workers, environ) as fleet:
            fill(self._owner, count, hot=hot)
            seconds = fleet.run_once()
        self._check(environ, count, hot=hot)
        return count / seconds

    def limit(self, count: int, *, hot: bool = False) -> float:
        """Mark the same rows and publish the same messages without Grantwire, and return the events per second."""
        environ = self._servers.environ(self._url)
        fill(self._owner, count, hot=hot)
        self._plain.fill()
        with Stream(environ), RawNats(self._servers.nats_admin_url) as nats:
            messages = encode_frames(self._owner, nats, environ["ENTITLEMENT_NATS_SUBJECT"])
            seconds = self._plain.drain()
            began = time.perf_counter()
            if hot:
                nats.publish_one_by_one(messages)
            else:
                nats.publish_pipelined(messages)
            seconds += time.perf_counter() - began
            self._delete_stream(nats, environ, count)
        return count / seconds

    def naive(self, count: int) -> float:
        """Publish `count` events statement by statement, and return the events per second."""
        environ = self._servers.environ(self._url)
        fill(self._owner, count, hot=False)
        rate = naive_relay(self._servers, environ)
        self._check(environ, count, hot=False)
        return rate

    def close(self) -> None:
        """Close the connections."""
        self._plain.close()
        self._owner.close()

    def _check(self, environ: Mapping[str, str], count: int, *, hot: bool) -> None:
        """Check that every event is PUBLISHED and once in the stream, in order if `hot`; then delete the stream."""
        statuses = self._owner.execute("SELECT status, count(*) FROM outbox_events GROUP BY status").fetchall()
        if statuses != [("PUBLISHED", count)]:
            raise RuntimeError(f"statuses of {count} events: {statuses}")
        if hot and versions_by_aggregate(read_stream(environ)) != {"u_hot/item1": list(range(1, count + 1))}:
            raise RuntimeError("the events of the hot aggregate are not in order")
        with RawNats(self._servers.nats_admin_url) as nats:
            self._delete_stream(nats, environ, count)

    @staticmethod
    def _delete_stream(nats: RawNats, environ: Mapping[str, str], count: int) -> None:
        """Check the number of messages and delete the stream, because old streams would slow the server down."""
        name = environ["ENTITLEMENT_NATS_STREAM"]
        messages = nats.request(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"]
        if messages != count:
            raise RuntimeError(f"the stream has {messages} messages for {count} events")
        nats.request(f"$JS.API.STREAM.DELETE.{name}")


def _rows(effort: Effort, many: Rounds, hot: Rounds) -> list[Row]:
    make_row = partial(Row.from_rounds, grantwire=_RELAY, limit=_LIMIT, target=_TARGET, unit="events/s")
    worker = "relay, one worker"
    return [
        make_row(
            many, f"{worker}, {effort.events:,} events of as many aggregates", alternative=PGQUEUER, must_be_faster=True
        ),
        make_row(hot, f"{worker}, {effort.hot_events:,} events of one hot aggregate"),
    ]


def _compare_workers(rounds: Rounds) -> list[Finding]:
    several = [
        Finding(f"{name} against one, events/s", f"{rounds.ratio(name, _RELAY).median:.2f}")
        for count, name in _WORKERS.items()
        if count > 1
    ]
    return [*several, Finding.compare(rounds, _RELAY, NAIVE, target=FASTER)]


def _chart(rounds: Rounds) -> Chart:
    points = tuple((float(count), rounds.rate(name).median) for count, name in _WORKERS.items())
    return Chart(
        "relay-workers", "Events per second by number of relays", "relays", "events/s", (Line("relay", points),)
    )
