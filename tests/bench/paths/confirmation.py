"""The cost of the confirmation and of `settled_through`.

Relay, bridge and grants run with a check beside them and without one, and the bridge with the index of the oldest
notification and without it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, LiteralString, cast

from grantwire.identifiers import uuid7
from tests.bench.fleet import Fleet
from tests.bench.outbox import encode_frames, fill
from tests.bench.raw_nats import RawNats
from tests.bench.results import Finding, Section
from tests.bench.rounds import run_rounds
from tests.bench.workers import BUDGET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

_ON = "with a check"
_OFF = "without"
_INDEXED = "with the index"
_LEAST = 0.97
_RELAY = "tests.bench.workers:make_drain_outbox_call"
_SERVING_RELAY = "tests.bench.workers:make_serve_outbox_call"
# A relay that did not get the turn asks for it again after this time (a quarter of the default interval).
_DUE_SECONDS = 2.6
# The time between the start of the work and the check beside it, and how much longer the relay runs than the grants.
_LEAD_SECONDS = 0.2
_EXTRA_SECONDS = 1.0
# Events that keep a relay busy for longer than the lead.
_MANY_EVENTS = 10_000
_METHOD = (
    "In each pair, a relay makes one check, or none because the last one was just now. The check confirms as many"
    " events as the path handles; they were published before, and the inbox has them. So the work for each event is"
    " that of a real installation. A real relay checks every ten seconds. Here each measurement of one or two seconds"
    " has a check, so that its constant cost is overstated. Bridge and grants run beside a relay on the same cores. The"
    " interval is that of the median, at 95 %."
)

# Events that were published an hour ago, and that the inbox has.
_ARRIVED: LiteralString = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, created_at,
                           published_at)
SELECT event_id, 'EntitlementGranted', 'arrived' || n, 1, '{}', 'PUBLISHED', false,
       now() - interval '2 hours', now() - interval '1 hour' + n * interval '1 millisecond'
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS e (event_id, n)
"""
_RECORD: LiteralString = "INSERT INTO processed_events SELECT event_id FROM outbox_events WHERE status = 'PUBLISHED'"
_VACUUM: LiteralString = "VACUUM ANALYZE outbox_events, processed_events"
# As in a new installation, except that the last check was just now.
_RESET: LiteralString = """
UPDATE outbox_confirmation
   SET mark = '-infinity', checked_at = now(), completed_at = NULL, has_more = false, claim = NULL, lease_until = NULL,
       stream = NULL, newest_event_id = NULL, losses_until = NULL
"""
_DUE: LiteralString = "UPDATE outbox_confirmation SET checked_at = NULL"
# Each notification that the bridge writes is also an entry of the index in which `settled_through` finds the oldest.
_INDEX = "notifications_unsent"
_INDEX_DEFINITION: LiteralString = "SELECT pg_get_indexdef(%(name)s::regclass)"
_CHECKED: LiteralString = """
SELECT completed_at IS NOT NULL,
       (SELECT count(*) FROM outbox_events WHERE status <> 'PUBLISHED'), (SELECT count(*) FROM outbox_unconfirmed)
  FROM outbox_confirmation
"""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure each path with and without a check, in alternating pairs."""
    count = effort.events // 2
    published = effort.events * 2
    granted = max(100, int(effort.seconds * 1_000))
    bench = _Bench(servers, effort)
    paths: dict[str, Callable[[bool], float]] = {
        f"relay, {published:,} events": partial(bench.relay, published),
        f"bridge, {count:,} messages": partial(bench.bridge, count),
        f"grant, {granted:,} events to confirm": partial(bench.grant, granted),
    }
    alone = f"nothing to publish, {count:,} events to confirm"
    try:
        findings = [
            _compare(name, _measure_pairs(name, effort.pairs, path, progress), _ON) for name, path in paths.items()
        ]
        rounds = _measure_pairs(alone, effort.pairs, partial(bench.alone, count), progress)
        findings.append(_cost_of_check(alone, count, rounds))
        indexed = f"bridge, {count:,} messages, index of the oldest notification"
        contenders = {_INDEXED: partial(bench.indexed, count, True), _OFF: partial(bench.indexed, count, False)}
        findings.append(_compare(indexed, run_rounds(indexed, effort.pairs, contenders, progress), _INDEXED))
    finally:
        bench.close()
    return Section("Confirmation", findings=findings, remarks=[_METHOD])


def _measure_pairs(name: str, pairs: int, path: Callable[[bool], float], progress: Progress) -> Rounds:
    contenders = {_ON: partial(path, True), _OFF: partial(path, False)}
    return run_rounds(name, pairs, contenders, progress)


def _compare(name: str, rounds: Rounds, more: str) -> Finding:
    """Return the rate with more work as a part of the rate without it."""
    ratio = rounds.ratio(more, _OFF)
    low, high = ratio.interval
    rates = f"{rounds.rate(more).median:,.0f}/s against {rounds.rate(_OFF).median:,.0f}/s"
    measured = f"{ratio.median:.3f} [{low:.3f}, {high:.3f}] of the rate without, {rates}"
    return Finding(f"{name}, {more}", measured, f"at least {_LEAST}", ratio.median >= _LEAST)


def _cost_of_check(name: str, count: int, rounds: Rounds) -> Finding:
    """Return the time of a check, by the difference between invocations with and without one."""
    pairs = zip(rounds.rates[_ON], rounds.rates[_OFF], strict=True)
    seconds = sorted(count / checking - count / idle for checking, idle in pairs)
    middle = seconds[len(seconds) // 2]
    return Finding(name, f"{middle * 1000:.0f} ms for a check, {middle / count * 1e6:.1f} µs for each event")


class _Bench:
    """Database in which events wait for the confirmation; each measurement has its own stream."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._effort = effort
        self._url = servers.database()
        self._owner = servers.owner(self._url)
        self._thread = ThreadPoolExecutor(1)
        [[definition]] = self._owner.execute(_INDEX_DEFINITION, {"name": _INDEX}).fetchall()
        self._index = cast("LiteralString", definition)

    def relay(self, count: int, check: bool) -> float:
        """Let a relay publish events, and return the events per second."""
        return self._drain(count, count, check=check)

    def alone(self, count: int, check: bool) -> float:
        """Let a relay check, with nothing to publish, and return the events per second."""
        return self._drain(0, count, check=check)

    def bridge(self, count: int, check: bool) -> float:
        """Let a bridge record messages beside a relay, and return the messages per second."""
        environ = self._environ()
        with (
            Fleet(_SERVING_RELAY, 1, environ) as relay,
            Fleet("tests.bench.workers:make_drain_stream_call", 1, environ) as bridge,
            RawNats(self._servers.nats_admin_url) as nats,
        ):
            due_at = time.monotonic() + _DUE_SECONDS
            fill(self._owner, count, hot=False)
            nats.publish_pipelined(encode_frames(self._owner, nats, environ["ENTITLEMENT_NATS_SUBJECT"]))
            # This also empties the outbox: the relay beside the bridge has nothing to publish.
            self._make_confirmable(count, check=check)
            running = self._start_beside(relay, due_at - _LEAD_SECONDS)
            seconds = bridge.run_once()
            running()
        self._verify(environ, count, check=check)
        return count / seconds

    def indexed(self, count: int, indexed: bool) -> float:
        """Let a bridge record messages, with its index or without, and return the messages per second."""
        environ = self._environ()
        self._owner.execute(f"DROP INDEX IF EXISTS {_INDEX}")
        if indexed:
            self._owner.execute(self._index)
        with (
            Fleet("tests.bench.workers:make_drain_stream_call", 1, environ) as bridge,
            RawNats(self._servers.nats_admin_url) as nats,
        ):
            fill(self._owner, count, hot=False)
            nats.publish_pipelined(encode_frames(self._owner, nats, environ["ENTITLEMENT_NATS_SUBJECT"]))
            self._owner.execute("TRUNCATE outbox_events")
            seconds = bridge.run_once()
        self._verify(environ, count, check=False)
        return count / seconds

    def grant(self, count: int, check: bool) -> float:
        """Grant entitlements beside a relay that publishes the events, and return the grants per second."""
        environ = self._environ()
        with (
            Fleet("tests.bench.callers:make_grant_call", self._effort.callers, environ) as callers,
            Fleet(_SERVING_RELAY, 1, environ) as relay,
        ):
            due_at = time.monotonic() + _DUE_SECONDS
            self._make_confirmable(count, check=check)
            running = self._start_beside(relay, due_at - self._effort.seconds / 2)
            rate = callers.measure_rate(self._effort.seconds)
            running()
        self._verify(environ, None, check=check)
        return rate

    def close(self) -> None:
        """Close the connection."""
        self._thread.shutdown()
        self._owner.close()

    def _drain(self, count: int, confirmed: int, *, check: bool) -> float:
        environ = self._environ()
        with Fleet(_RELAY, 1, environ) as fleet:
            due_at = time.monotonic() + _DUE_SECONDS
            fill(self._owner, count, hot=False)
            self._make_confirmable(confirmed, check=check, keep_outbox=True)
            # The check becomes due while the relay publishes, unless it is done with so few events before.
            start_at = due_at - (_LEAD_SECONDS if count >= _MANY_EVENTS else 0)
            time.sleep(max(0.0, start_at - time.monotonic()))
            seconds = fleet.run_once()
        self._verify(environ, count, check=check)
        return confirmed / seconds

    def _environ(self) -> dict[str, str]:
        """Empty the outbox, and return an environment whose relay finds that the last check was just now."""
        self._owner.execute("TRUNCATE outbox_events, outbox_unconfirmed, processed_events, notifications")
        self._owner.execute("TRUNCATE user_entitlements, entitlement_audit")
        self._owner.execute(_RESET)
        budget = f"{self._effort.seconds + _DUE_SECONDS + _EXTRA_SECONDS:.3f}s"
        return self._servers.environ(self._url) | {BUDGET: budget}

    def _make_confirmable(self, count: int, *, check: bool, keep_outbox: bool = False) -> None:
        """Add events to confirm, and make the check due or not."""
        if not keep_outbox:
            self._owner.execute("TRUNCATE outbox_events")
        self._owner.execute(_ARRIVED, {"ids": [uuid7() for _ in range(count)]})
        self._owner.execute(_RECORD)
        self._owner.execute(_VACUUM)
        self._owner.execute(_RESET)
        if check:
            self._owner.execute(_DUE)

    def _start_beside(self, relay: Fleet, start_at: float) -> Callable[[], float]:
        """Start a relay; at `start_at` return a function that waits for its end."""
        running = self._thread.submit(relay.run_once)
        time.sleep(max(0.0, start_at - time.monotonic()))
        return running.result

    def _verify(self, environ: Mapping[str, str], messages: int | None, *, check: bool) -> None:
        """Check that everything was published and confirmed, and delete the stream."""
        found = self._owner.execute(_CHECKED).fetchone()
        if found != (check, 0, 0):
            raise RuntimeError(f"checked, not published, listed: {found}, expected {(check, 0, 0)}")
        name = environ["ENTITLEMENT_NATS_STREAM"]
        with RawNats(self._servers.nats_admin_url) as nats:
            stored = nats.request(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"]
            nats.request(f"$JS.API.STREAM.DELETE.{name}")
        if messages is not None and stored != messages:
            raise RuntimeError(f"the stream has {stored} messages for {messages} events")
