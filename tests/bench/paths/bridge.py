"""From the stream to the inbox: one bridge, compared with plain inserts and a bare socket."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.bench.fleet import Fleet
from tests.bench.inbox import BATCH_SIZE, PlainInserts
from tests.bench.job_queue import PGQUEUER, PgQueuer
from tests.bench.naive import NAIVE
from tests.bench.naive_workers import naive_bridge
from tests.bench.outbox import encode_frames, fill
from tests.bench.raw_nats import RawNats
from tests.bench.results import FASTER, Finding, Row, Section
from tests.bench.rounds import run_rounds
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

_BRIDGE = "bridge"
_LIMIT = "plain inserts, then plain bytes"
_TARGET = 0.4
_TIMEOUT_SECONDS = 10.0
_METHOD = (
    f"The limit of the bridge writes the same rows in transactions of {BATCH_SIZE}, with one INSERT for each of the"
    " three tables and no check for recorded events. Then it fetches and acknowledges the same messages,"
    f" {BATCH_SIZE} at a time, over a bare socket. The two times are added."
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure one bridge."""
    count = effort.events
    bench, queue = _Inbox(servers, count), PgQueuer(servers)
    try:
        rounds = run_rounds(
            f"bridge, {count:,} messages",
            effort.rounds,
            {
                _BRIDGE: bench.grantwire,
                _LIMIT: bench.limit,
                PGQUEUER: partial(queue.measure_rate, count),
                NAIVE: partial(bench.naive, effort.hot_events),
            },
            progress,
        )
    finally:
        bench.close()
    path = f"bridge, one worker, {count:,} messages"
    row = Row.from_rounds(
        rounds,
        path,
        grantwire=_BRIDGE,
        limit=_LIMIT,
        target=_TARGET,
        unit="messages/s",
        alternative=PGQUEUER,
        must_be_faster=True,
    )
    return Section("Bridge", [row], [Finding.compare(rounds, _BRIDGE, NAIVE, target=FASTER)], remarks=[_METHOD])


class _Inbox:
    """Database whose inbox is truncated before each measurement; each measurement has its own stream."""

    def __init__(self, servers: Servers, count: int) -> None:
        self._servers = servers
        self._count = count
        self._url = servers.database()
        self._owner = servers.owner(self._url)
        fill(self._owner, count, hot=False)
        self._plain = PlainInserts(servers.databases.url_for_owner(self._url), count)

    def grantwire(self) -> float:
        """Let a bridge record the messages, and return the messages per second.

        The bridge runs in its own process and connects before the messages are published.
        """
        environ = self._servers.environ(self._url)
        self._plain.truncate()
        with (
            Fleet("tests.bench.workers:make_drain_stream_call", 1, environ) as fleet,
            RawNats(self._servers.nats_admin_url) as nats,
        ):
            self._publish(nats, environ, self._count)
            seconds = fleet.run_once()
            self._check(nats, environ, self._count)
        return self._count / seconds

    def limit(self) -> float:
        """Write the same rows and fetch the same messages without Grantwire, and return the messages per second."""
        environ = self._servers.environ(self._url)
        self._plain.truncate()
        with Stream(environ), RawNats(self._servers.nats_admin_url) as nats:
            self._publish(nats, environ, self._count)
            seconds = self._plain.write()
            fetch = partial(
                nats.fetch_and_ack, environ["NOTIFICATION_NATS_STREAM"], environ["NOTIFICATION_NATS_DURABLE"]
            )
            began = time.perf_counter()
            fetch(batch=BATCH_SIZE, count=self._count)
            seconds += time.perf_counter() - began
            self._check(nats, environ, self._count)
        return self._count / seconds

    def naive(self, count: int) -> float:
        """Record the first `count` messages statement by statement, and return the messages per second."""
        environ = self._servers.environ(self._url)
        self._plain.truncate()
        with Stream(environ), RawNats(self._servers.nats_admin_url) as nats:
            self._publish(nats, environ, count)
            rate = naive_bridge(environ, count)
            self._check(nats, environ, count)
        return rate

    def close(self) -> None:
        """Close the connections."""
        self._plain.close()
        self._owner.close()

    def _publish(self, nats: RawNats, environ: Mapping[str, str], count: int) -> None:
        nats.publish_pipelined(encode_frames(self._owner, nats, environ["ENTITLEMENT_NATS_SUBJECT"])[:count])

    def _check(self, nats: RawNats, environ: Mapping[str, str], count: int) -> None:
        """Check that every message is recorded once, delivered once and acknowledged; then delete the stream."""
        if self._plain.counts() != (count,) * 3:
            counts = self._plain.counts()
            raise RuntimeError(f"inbox rows, notifications and read model rows of {count} events: {counts}")
        stream, durable = environ["NOTIFICATION_NATS_STREAM"], environ["NOTIFICATION_NATS_DURABLE"]
        deadline = time.monotonic() + _TIMEOUT_SECONDS  # the server counts acknowledgements with a delay
        while (consumed := _count_consumed(nats.request(f"$JS.API.CONSUMER.INFO.{stream}.{durable}"))) != (count,) * 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"deliveries and acknowledgements of {count} messages: {consumed}")
        nats.request(f"$JS.API.STREAM.DELETE.{stream}")


def _count_consumed(info: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of deliveries, including redeliveries, and of acknowledged messages without a gap."""
    floor = info["ack_floor"]["stream_seq"] if not info["num_ack_pending"] and not info["num_redelivered"] else 0
    return info["delivered"]["consumer_seq"], floor
