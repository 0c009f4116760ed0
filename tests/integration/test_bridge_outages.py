"""N6: an outage of PostgreSQL, however long and whenever it begins, makes no dead letter and no double."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from grantwire.runtime.bridge import BridgeRuntime
from grantwire.workers.budget import Budget
from tests.support.migrations import migrate
from tests.support.paths import MIGRATIONS
from tests.support.workers.bridge_stream import Stream, event
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infra.local.servers.postgres import PostgresServer

_BLOCKED = "SELECT pid FROM pg_stat_activity WHERE application_name = 'grantwire-bridge' AND wait_event_type = 'Lock'"

# ack-wait x max-deliver is 600 ms.
ACK_WAIT = {"NOTIFICATION_NATS_ACK_WAIT": "300ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}


@pytest.fixture(params=["200", "10"], ids=["one batch", "the next one fetched ahead"])
def environ(server: PostgresServer, nats_url: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A worker's environment with a database on the server that may be stopped.

    Of 20 events the bridge has all in one batch, or ten in one that PostgreSQL writes and ten more in hand.
    """
    name = f"gw_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    migrate(server.url(name), MIGRATIONS)
    yield worker_environ(server.url(name), nats_url) | ACK_WAIT | {"NOTIFICATION_NATS_FETCH": request.param}
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class Working:
    """A bridge that works in a thread until it is told to end."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.result: dict[str, int] = {}
        self._over = False
        self._runtime = BridgeRuntime.build(environ)
        # A test that fails leaves it behind, and must not wait for it.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self.result = self._runtime.run(Budget(1.0, clock=lambda: 2.0 if self._over else 0.0))
        self._runtime.close()

    def end(self) -> dict[str, int]:
        """End it, and see what it did."""
        self._over = True
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        return self.result


def test_an_outage_longer_than_all_deliveries_makes_no_dead_letter(
    environ: dict[str, str], server: PostgresServer
) -> None:
    """N6: it begins between fetch and commit; the bridge keeps what it has, fetches nothing, and goes on afterwards."""
    with Stream(environ) as stream:
        bridge = _stop_between_fetch_and_commit(environ, server, stream)
        stream.publish(*(event() for _ in range(20)))
        time.sleep(1.5)  # the outage itself: past ack-wait x max-deliver
        assert stream.deliveries() == 20
        server.start()
        _until(lambda: _effects(environ) == [(40, 40)])
        assert bridge.end() == {"recorded": 40, "duplicates": 0, "terminated": 0, "returned": 0}
        _nothing_is_left(stream)


@pytest.mark.parametrize("max_deliver", ["1", "2"])
def test_what_is_held_at_the_end_is_given_back_and_no_delivery_is_the_last(
    environ: dict[str, str], server: PostgresServer, max_deliver: str
) -> None:
    """N6: the bridge ends during the outage, its successors fetch nothing; afterwards each event has one effect.

    With one delivery allowed, the one that was given back was the last, and still there is no dead letter.
    """
    environ |= {"NOTIFICATION_NATS_MAX_DELIVER": max_deliver}
    with Stream(environ) as stream:
        bridge = _stop_between_fetch_and_commit(environ, server, stream)
        assert bridge.end()["returned"] == 20
        for _ in range(3):
            successor = BridgeRuntime.build(environ)
            assert set(successor.run(Budget(time.monotonic() + 0.3)).values()) == {0}
            successor.close()
        assert stream.deliveries() == 20
        server.start()
        bridge = Working(environ)
        _until(lambda: _effects(environ) == [(20, 20)])
        assert bridge.end()["recorded"] == 20
        _nothing_is_left(stream)


def test_a_batch_that_takes_longer_than_the_ack_wait_is_not_delivered_again(
    environ: dict[str, str], server: PostgresServer
) -> None:
    """N6: JetStream is told that it is being worked on, for as long as the statement waits."""
    with Stream(environ) as stream, psycopg.connect(environ["DATABASE_URL"]) as blocker:
        bridge = _work_until_blocked(environ, server, stream, blocker)
        time.sleep(1.0)  # past ack-wait x max-deliver
        blocker.rollback()
        _until(lambda: _effects(environ) == [(20, 20)])
        assert bridge.end() == {"recorded": 20, "duplicates": 0, "terminated": 0, "returned": 0}
        assert stream.deliveries() == 20
        _nothing_is_left(stream)


def test_a_database_that_fails_again_and_again_burns_no_deliveries(
    environ: dict[str, str], server: PostgresServer
) -> None:
    """N6: more failures between fetch and commit than deliveries are allowed; the batch stays in hand."""
    with (
        Stream(environ) as stream,
        psycopg.connect(environ["DATABASE_URL"]) as blocker,
        psycopg.connect(server.url(), autocommit=True) as control,
    ):
        bridge = _work_until_blocked(environ, server, stream, blocker)
        terminated: set[int] = set()
        while len(terminated) < 4:
            for (session,) in control.execute(_BLOCKED).fetchall():
                control.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
                terminated.add(session)
            time.sleep(0.02)
        blocker.rollback()
        _until(lambda: _effects(environ) == [(20, 20)])
        assert bridge.end() == {"recorded": 20, "duplicates": 0, "terminated": 0, "returned": 0}
        assert stream.deliveries() == 20
        _nothing_is_left(stream)


def _stop_between_fetch_and_commit(environ: dict[str, str], server: PostgresServer, stream: Stream) -> Working:
    with psycopg.connect(environ["DATABASE_URL"]) as blocker:
        bridge = _work_until_blocked(environ, server, stream, blocker)
        server.stop()
        blocker.close()
    return bridge


def _work_until_blocked(
    environ: dict[str, str], server: PostgresServer, stream: Stream, blocker: psycopg.Connection[Any]
) -> Working:
    """A bridge that has fetched 20 events and waits for one of them, which another transaction is writing."""
    events = [event() for _ in range(20)]
    stream.publish(*events)
    blocker.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (events[9].event_id,))
    bridge = Working(environ)
    with psycopg.connect(server.url(), autocommit=True) as control:
        _until(lambda: bool(control.execute(_BLOCKED).fetchall()))
    _until(lambda: stream.deliveries() == 20)
    return bridge


def _effects(environ: dict[str, str]) -> list[tuple[Any, ...]]:
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        return connection.execute("SELECT count(*), count(DISTINCT event_id) FROM notifications").fetchall()


def _nothing_is_left(stream: Stream) -> None:
    """All is acknowledged, and JetStream has given up on nothing; it says so with a pull at the latest."""
    info = stream.consumer()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    assert stream.advisories() == []


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
