"""N6: an outage of PostgreSQL creates no dead letter and no duplicate, however long it lasts."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.workers.budget import Budget
from tests.support.migrations import migrate
from tests.support.nats_users import configured
from tests.support.waiting import until
from tests.support.workers.bridge_stream import Stream, event
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer

_BLOCKED = "SELECT pid FROM pg_stat_activity WHERE application_name = 'grantwire-bridge' AND wait_event_type = 'Lock'"

# A bridge extends the ack wait when a part of it has passed, so a shorter one would end early on a busy machine.
ACK_WAIT = {"NOTIFICATION_NATS_ACK_WAIT": "1500ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}
ALL_DELIVERIES_SECONDS = 3.2


@pytest.fixture(params=["200", "10"], ids=["one batch", "next batch prefetched"])
def environ(server: PostgresServer, nats_url: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Return a worker's environment, with a database on the server that the tests stop.

    The bridge holds 20 events: all in one batch, or ten in the batch being written and ten prefetched.
    """
    name = f"gw_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    migrate(server.url(name))
    environ = worker_environ(server.url(name), nats_url) | ACK_WAIT | {"NOTIFICATION_NATS_FETCH": request.param}
    yield configured(environ)
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class RunningBridge:
    """A bridge that runs in a thread until `end`."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.result: dict[str, int] = {}
        self._is_over = False
        self._runtime = BridgeRuntime.build(environ)
        # A daemon, so that a failing test does not wait for it.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._runtime.run(Budget(1.0, clock=lambda: 2.0 if self._is_over else 0.0))
        self._runtime.close()

    def end(self) -> dict[str, int]:
        """Stop the bridge and return its counts."""
        self._is_over = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        return self.result


def test_outage_longer_than_all_redeliveries_creates_no_dead_letter(
    environ: dict[str, str], server: PostgresServer
) -> None:
    """N6: it starts between fetch and commit; the bridge keeps its batch, fetches nothing, and continues afterwards."""
    with Stream(environ) as stream:
        later = [event() for _ in range(20)]
        stream.audit(*later)
        bridge = _stop_server_between_fetch_and_commit(environ, server, stream)
        stream.publish(*later)
        time.sleep(ALL_DELIVERIES_SECONDS)  # the outage
        assert stream.delivery_count() == 20
        server.start()
        until("all are recorded", lambda: _count_notifications(environ) == [(40, 40)])
        assert bridge.end() == {"recorded": 40, "duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 0}
        _assert_all_acknowledged(stream)


@pytest.mark.parametrize("max_deliver", ["1", "2"])
def test_bridge_that_ends_during_outage_returns_its_messages(
    environ: dict[str, str], server: PostgresServer, max_deliver: str
) -> None:
    """N6: later bridges fetch nothing during the outage; afterwards each event has one effect.

    With max-deliver 1 the returned delivery was the last one, and still there is no dead letter.
    """
    environ |= {"NOTIFICATION_NATS_MAX_DELIVER": max_deliver}
    with Stream(environ) as stream:
        bridge = _stop_server_between_fetch_and_commit(environ, server, stream)
        assert bridge.end()["returned"] == 20
        for _ in range(3):
            successor = BridgeRuntime.build(environ)
            assert set(successor.run(Budget(time.monotonic() + 0.3)).values()) == {0}
            successor.close()
        assert stream.delivery_count() == 20
        server.start()
        bridge = RunningBridge(environ)
        until("all are recorded", lambda: _count_notifications(environ) == [(20, 20)])
        assert bridge.end()["recorded"] == 20
        _assert_all_acknowledged(stream)


def test_batch_slower_than_ack_wait_is_not_redelivered(environ: dict[str, str], server: PostgresServer) -> None:
    """N6: the bridge extends the ack wait for as long as the statement waits."""
    with Stream(environ) as stream, psycopg.connect(environ["DATABASE_URL"]) as blocker:
        bridge = _start_blocked_bridge(environ, server, stream, blocker)
        time.sleep(ALL_DELIVERIES_SECONDS)
        blocker.rollback()
        until("all are recorded", lambda: _count_notifications(environ) == [(20, 20)])
        assert bridge.end() == {"recorded": 20, "duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 0}
        assert stream.delivery_count() == 20
        _assert_all_acknowledged(stream)


def test_repeated_database_failures_use_up_no_deliveries(environ: dict[str, str], server: PostgresServer) -> None:
    """N6: more failures between fetch and commit than max-deliver; the bridge keeps the batch."""
    with (
        Stream(environ) as stream,
        psycopg.connect(environ["DATABASE_URL"]) as blocker,
        psycopg.connect(server.url(), autocommit=True) as control,
    ):
        bridge = _start_blocked_bridge(environ, server, stream, blocker)
        terminated: set[int] = set()
        while len(terminated) < 4:
            for (session,) in control.execute(_BLOCKED).fetchall():
                control.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
                terminated.add(session)
            time.sleep(0.02)
        blocker.rollback()
        until("all are recorded", lambda: _count_notifications(environ) == [(20, 20)])
        assert bridge.end() == {"recorded": 20, "duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 0}
        assert stream.delivery_count() == 20
        _assert_all_acknowledged(stream)


def _stop_server_between_fetch_and_commit(
    environ: dict[str, str], server: PostgresServer, stream: Stream
) -> RunningBridge:
    with psycopg.connect(environ["DATABASE_URL"]) as blocker:
        bridge = _start_blocked_bridge(environ, server, stream, blocker)
        server.stop()
        blocker.close()
    return bridge


def _start_blocked_bridge(
    environ: dict[str, str], server: PostgresServer, stream: Stream, blocker: psycopg.Connection[Any]
) -> RunningBridge:
    """Start a bridge that has fetched 20 events, and waits for a lock on one of them."""
    events = [event() for _ in range(20)]
    stream.publish(*events)
    blocker.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (events[9].event_id,))
    bridge = RunningBridge(environ)
    with psycopg.connect(server.url(), autocommit=True) as control:
        until("the bridge waits for the lock", lambda: control.execute(_BLOCKED).fetchall())
    until("all are delivered", lambda: stream.delivery_count() == 20)
    return bridge


def _count_notifications(environ: dict[str, str]) -> list[tuple[Any, ...]]:
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        return connection.execute("SELECT count(*), count(DISTINCT event_id) FROM notifications").fetchall()


def _assert_all_acknowledged(stream: Stream) -> None:
    """Assert that all messages are acknowledged and that there are no advisories."""
    info = stream.consumer_info()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    assert stream.advisories() == []
