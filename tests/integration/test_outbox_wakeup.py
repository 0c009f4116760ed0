"""O9: a relay that sleeps is woken; one that is awake costs the grants nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import DatabaseSettings
from grantwire.outbox.wakeup import ASLEEP, Wakeup
from grantwire.settings import load
from grantwire.workers.budget import Budget
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.relay_support import budget, enqueue, relay, stream, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client


@pytest.fixture
def wakeup(database_url: str) -> Iterator[Wakeup]:
    """One relay's sleep."""
    wakeup = Wakeup(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield wakeup
    wakeup.close()


@pytest.fixture
def listener(database_url: str) -> Iterator[psycopg.Connection]:
    """Somebody else who hears every notification."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("LISTEN outbox_events")
        yield connection


def _heard(listener: psycopg.Connection) -> int:
    listener.execute("SELECT 1")  # whatever was committed before this has arrived with the answer
    return len(list(listener.notifies(timeout=0.05)))


def test_grants_notify_only_while_a_relay_sleeps(client: Client, wakeup: Wakeup, listener: psycopg.Connection) -> None:
    """O9: no relay at all, asleep, awake; a notification makes commits wait for each other."""
    client.grant("k1", user_id="u1")
    assert _heard(listener) == 0
    assert wakeup.fall_asleep()
    client.grant("k2", user_id="u2")
    assert _heard(listener) == 1
    wakeup.wake_up()
    for number in range(5):
        client.grant(f"awake-{number}", user_id=f"awake-{number}")
    assert _heard(listener) == 0


def test_one_of_several_relays_holds_the_lock(client: Client, database_url: str, listener: psycopg.Connection) -> None:
    """O9: the others poll, without waiting for it; when it goes, another takes the lead."""
    settings = load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url})
    first, second = Wakeup(settings), Wakeup(settings)
    try:
        assert first.fall_asleep()
        assert not second.fall_asleep()
        second.wake_up()
        client.grant("k1")
        assert _heard(listener) == 1
        first.close()
        until("the server has let the first one's locks go", second.fall_asleep)
    finally:
        first.close()
        second.close()


def test_an_enqueue_under_way_is_not_missed(wakeup: Wakeup, rows: Rows, owner_url: str) -> None:
    """O9: the lock is had when whoever enqueued without a notification has committed, so one more look finds it."""
    with psycopg.connect(owner_url) as enqueueing:
        enqueueing.execute("SELECT outbox_enqueue(gen_random_uuid(), 'EntitlementGranted', 'a', 1, '{}', NULL)")
        committing = threading.Timer(0.02, enqueueing.commit)
        committing.start()
        until("the relay may sleep", wakeup.fall_asleep)
        assert rows.execute("SELECT count(*) AS n FROM outbox_events").fetchall() == [{"n": 1}]
        committing.join()


def test_a_lock_that_is_not_to_be_had_is_not_waited_for(wakeup: Wakeup, database_url: str) -> None:
    """O9: an enqueue that never commits keeps a relay from the lock; the relay goes on without, and looks often."""
    with psycopg.connect(database_url) as enqueue:
        enqueue.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", (ASLEEP,))
        started = time.monotonic()
        assert not wakeup.fall_asleep()
        asyncio.run(wakeup.wait(20))
        assert time.monotonic() - started < 5


def test_a_wait_ends_with_a_notification_or_with_its_time(wakeup: Wakeup, client: Client) -> None:
    """O9: the event loop goes on in the meantime; whoever was woken no longer wants to be told."""

    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert wakeup.fall_asleep()
        started = loop.time()
        await wakeup.wait(0.05)
        timed_out = loop.time() - started
        assert wakeup.asleep
        granting = loop.run_in_executor(None, lambda: client.grant("k1"))
        started = loop.time()
        await wakeup.wait(20)
        await granting
        return timed_out, loop.time() - started

    timed_out, woken = asyncio.run(scenario())
    assert 0.05 <= timed_out < 5
    assert woken < 10
    assert not wakeup.asleep


def test_a_grant_wakes_a_relay_that_sleeps(
    environ: dict[str, str], client: Client, rows: Rows, listener: psycopg.Connection
) -> None:
    """O9: the poll interval is a minute, so it is the notification that brings the event into the stream."""
    sleepy = environ | {"ENTITLEMENT_OUTBOX_POLL_INTERVAL": "1m"}
    with relay(sleepy) as runtime:
        thread = threading.Thread(target=lambda: runtime.run(budget(2.5)))
        thread.start()
        until("the relay sleeps", lambda: _sleeping(rows))
        client.grant("k1", user_id="u1")
        until("the event is published", lambda: _published(rows) == 1, seconds=2)
        assert _heard(listener) == 1
        thread.join()
    assert len(stream(environ)) == 1
    assert not _sleeping(rows)


# Returns when a relay asks for the lock of those who sleep, which this transaction shares. The server itself looks, so
# that the relay is still waiting then.
_UNTIL_A_RELAY_ASKS = f"""
DO $$ BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)) AND NOT granted
                         AND locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = {ASLEEP}) LOOP
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$
"""


def test_a_relay_looks_once_more_before_it_sleeps(
    environ: dict[str, str], owner_url: str, rows: Rows, listener: psycopg.Connection
) -> None:
    """O9, V1: what was committed after its last look and before it had the lock is published without a notification.

    It polls once a minute, so that only this look can find the event.
    """
    over = False
    with relay(environ | {"ENTITLEMENT_OUTBOX_POLL_INTERVAL": "1m"}) as runtime, psycopg.connect(owner_url) as granting:
        enqueue(granting, "u_1/item1", 1)
        budget = Budget(1000.0, clock=lambda: 2000.0 if over else 0.0)
        thread = threading.Thread(target=lambda: runtime.run(budget))
        thread.start()
        try:
            granting.execute(_UNTIL_A_RELAY_ASKS)
            granting.commit()
            until("the event is published", lambda: _published(rows) == 1, seconds=10)
            assert _heard(listener) == 0
            until("the relay sleeps", lambda: _sleeping(rows))
        finally:
            over = True
            rows.execute("NOTIFY outbox_events")  # for a relay that sleeps
            thread.join(timeout=90)
    assert len(stream(environ)) == 1


@pytest.mark.parametrize("broken", [{"ENTITLEMENT_OUTBOX_WAKEUP": "false"}, {"DATABASE_LISTEN_HOST": "127.0.0.1:9"}])
def test_without_a_wake_up_the_relay_polls(
    broken: dict[str, str], environ: dict[str, str], client: Client, rows: Rows
) -> None:
    """O9: switched off, or out of reach."""
    with relay(environ | broken) as runtime:
        thread = threading.Thread(target=lambda: runtime.run(budget(1)))
        thread.start()
        time.sleep(0.3)
        client.grant("k1", user_id="u1")
        thread.join()
    assert _published(rows) == 1


def test_a_wake_up_that_is_cut_off_does_not_stop_the_relay(environ: dict[str, str], client: Client, rows: Rows) -> None:
    """O9: its connection dies while it sleeps; it polls."""
    with relay(environ | {"ENTITLEMENT_OUTBOX_POLL_INTERVAL": "50ms"}) as runtime:
        thread = threading.Thread(target=lambda: runtime.run(budget(1.5)))
        thread.start()
        until("the relay sleeps", lambda: _sleeping(rows))
        rows.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'grantwire-listen-outbox_events' AND datname = current_database()"
        )
        client.grant("k1", user_id="u1")
        until("the event is published", lambda: _published(rows) == 1)
        thread.join()
    assert len(stream(environ)) == 1


def _sleeping(rows: Rows) -> bool:
    found = rows.execute(
        "SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database"
        " WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND datname = current_database()"
        " AND (classid::bigint << 32 | objid::bigint) = %s",
        (ASLEEP,),
    )
    return bool(found.fetchall())


def _published(rows: Rows) -> int:
    (row,) = rows.execute("SELECT count(*) AS n FROM outbox_events WHERE status = 'PUBLISHED'").fetchall()
    return int(row["n"])
