"""From the stream to the inbox: one bridge against plain inserts and plain bytes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.bench.fleet import Fleet
from tests.bench.inbox import BATCH, PlainInserts
from tests.bench.job_queue import PGQUEUER, PgQueuer
from tests.bench.naive import NAIVE
from tests.bench.naive_workers import naive_bridge
from tests.bench.outbox import fill, frames
from tests.bench.raw_nats import RawNats
from tests.bench.results import Finding, Row, Section
from tests.bench.rounds import interleave
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_BRIDGE = "bridge"
_LIMIT = "plain inserts, then plain bytes"
_TARGET = 0.4
_PATIENCE = 10.0
_HOW = (
    f"The bridge's limit writes the same rows in transactions of {BATCH}, one INSERT for each of the three tables, with"
    f" no look at what is known already, and then fetches and acknowledges the same messages, {BATCH} at a time, over a"
    " bare socket. The two times are added."
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """The one row."""
    count = effort.events
    bench, queue = _Inbox(servers, count), PgQueuer(servers)
    try:
        rounds = interleave(
            f"bridge, {count:,} messages",
            effort.rounds,
            {
                _BRIDGE: bench.ours,
                _LIMIT: bench.limit,
                PGQUEUER: partial(queue.rate, count),
                NAIVE: partial(bench.naive, effort.hot_events),
            },
            progress,
        )
    finally:
        bench.close()
    path = f"bridge, one worker, {count:,} messages"
    row = Row.of(
        rounds,
        path,
        ours=_BRIDGE,
        limit=_LIMIT,
        target=_TARGET,
        unit="messages/s",
        peer=PGQUEUER,
        ahead=True,
    )
    return Section("Bridge", [row], [Finding.against(rounds, _BRIDGE, NAIVE, ahead=True)], remarks=[_HOW])


class _Inbox:
    """One database whose inbox is empty before each measurement, and a stream of its own for each."""

    def __init__(self, servers: Servers, count: int) -> None:
        self._servers = servers
        self._count = count
        self._url = servers.database()
        self._owner = servers.owner(self._url)
        fill(self._owner, count, hot=False)
        self._plain = PlainInserts(servers.databases.url_for_owner(self._url), count)

    def ours(self) -> float:
        """A bridge in a process of its own, connected before there is anything to do; messages a second."""
        environ = self._servers.environ(self._url)
        self._plain.empty()
        with (
            Fleet("tests.bench.workers:drain_stream", 1, environ) as fleet,
            RawNats(self._servers.nats.url) as nats,
        ):
            self._publish(nats, environ, self._count)
            seconds = fleet.once()
            self._check(nats, environ, self._count)
        return self._count / seconds

    def limit(self) -> float:
        """The same rows and the same messages; messages a second."""
        environ = self._servers.environ(self._url)
        self._plain.empty()
        with Stream(environ), RawNats(self._servers.nats.url) as nats:
            self._publish(nats, environ, self._count)
            seconds = self._plain.write()
            fetch = partial(
                nats.fetch_and_ack, environ["NOTIFICATION_NATS_STREAM"], environ["NOTIFICATION_NATS_DURABLE"]
            )
            began = time.perf_counter()
            fetch(batch=BATCH, count=self._count)
            seconds += time.perf_counter() - began
            self._check(nats, environ, self._count)
        return self._count / seconds

    def naive(self, count: int) -> float:
        """The oldest of the messages, statement by statement; messages a second."""
        environ = self._servers.environ(self._url)
        self._plain.empty()
        with Stream(environ), RawNats(self._servers.nats.url) as nats:
            self._publish(nats, environ, count)
            rate = naive_bridge(environ, count)
            self._check(nats, environ, count)
        return rate

    def close(self) -> None:
        """Give the connections back."""
        self._plain.close()
        self._owner.close()

    def _publish(self, nats: RawNats, environ: Mapping[str, str], count: int) -> None:
        nats.publish_pipelined(frames(self._owner, nats, environ["ENTITLEMENT_NATS_SUBJECT"])[:count])

    def _check(self, nats: RawNats, environ: Mapping[str, str], count: int) -> None:
        """Every message is recorded once, delivered once and acknowledged; then the stream goes."""
        if self._plain.counts() != (count,) * 3:
            raise RuntimeError(f"inbox rows, notifications and rights of {count} events: {self._plain.counts()}")
        stream, durable = environ["NOTIFICATION_NATS_STREAM"], environ["NOTIFICATION_NATS_DURABLE"]
        deadline = time.monotonic() + _PATIENCE  # the server counts an acknowledgement later than it takes it
        while (found := _consumed(nats.request(f"$JS.API.CONSUMER.INFO.{stream}.{durable}"))) != (count,) * 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"deliveries and acknowledgements of {count} messages: {found}")
        nats.request(f"$JS.API.STREAM.DELETE.{stream}")


def _consumed(info: Mapping[str, Any]) -> tuple[int, int]:
    """Deliveries, repeats included, and the message up to which all are acknowledged."""
    floor = info["ack_floor"]["stream_seq"] if not info["num_ack_pending"] and not info["num_redelivered"] else 0
    return info["delivered"]["consumer_seq"], floor
