"""O9: an enqueue wakes a sleeping relay, and does not notify while the relay is awake."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import DatabaseSettings
from grantwire.outbox.wakeup import ASLEEP_LOCK_ID, Wakeup
from grantwire.settings import load
from grantwire.workers.budget import Budget
from tests.support.plaintext import PLAINTEXT
from tests.support.waiting import WAKEUP_SECONDS, until
from tests.support.workers.relay_support import enqueue, read_stream, relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client


@pytest.fixture
def wakeup(database_url: str) -> Iterator[Wakeup]:
    """The wake-up of one relay."""
    wakeup = Wakeup(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield wakeup
    wakeup.close()


@pytest.fixture
def listener(database_url: str) -> Iterator[psycopg.Connection]:
    """A separate connection that receives every notification."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("LISTEN outbox_events")
        yield connection


def _count_notifications(listener: psycopg.Connection) -> int:
    listener.execute("SELECT 1")  # its response comes after all notifications that were committed before
    return len(list(listener.notifies(timeout=0.05)))


def test_grants_notify_only_while_a_relay_sleeps(client: Client, wakeup: Wakeup, listener: psycopg.Connection) -> None:
    """O9: without a relay, while it sleeps, while it is awake. Notifications make commits wait for each other."""
    client.grant("k1", user_id="u1")
    assert _count_notifications(listener) == 0
    assert wakeup.fall_asleep()
    client.grant("k2", user_id="u2")
    assert _count_notifications(listener) == 1
    wakeup.wake_up()
    for number in range(5):
        client.grant(f"awake-{number}", user_id=f"awake-{number}")
    assert _count_notifications(listener) == 0


def test_only_one_relay_is_the_leader(client: Client, database_url: str, listener: psycopg.Connection) -> None:
    """O9: the others do not wait for the lock; when the leader ends, another relay becomes the leader."""
    settings = load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url})
    first, second = Wakeup(settings), Wakeup(settings)
    try:
        assert first.fall_asleep()
        assert not second.fall_asleep()
        second.wake_up()
        client.grant("k1")
        assert _count_notifications(listener) == 1
        first.close()
        until("the server releases the locks of the first relay", second.fall_asleep)
    finally:
        first.close()
        second.close()


def test_event_of_an_open_transaction_is_not_missed(wakeup: Wakeup, rows: Rows, owner_url: str) -> None:
    """O9: the lock is granted after enqueues without a notification have committed, so the next poll finds them."""
    with psycopg.connect(owner_url) as enqueueing:
        enqueueing.execute("SELECT outbox_enqueue(gen_random_uuid(), 'EntitlementGranted', 'a', 1, '{}', NULL)")
        committing = threading.Timer(0.02, enqueueing.commit)
        committing.start()
        until("the relay is asleep", wakeup.fall_asleep)
        assert rows.execute("SELECT count(*) AS n FROM outbox_events").fetchall() == [{"n": 1}]
        committing.join()


def test_relay_does_not_wait_long_for_the_lock(wakeup: Wakeup, database_url: str) -> None:
    """O9: if an enqueue never commits, the relay cannot take the lock, and polls often instead."""
    with psycopg.connect(database_url) as enqueue:
        enqueue.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", (ASLEEP_LOCK_ID,))
        assert not wakeup.fall_asleep()
        asyncio.run(asyncio.wait_for(wakeup.wait(600), 60))


def test_wait_ends_with_a_notification_or_a_timeout(wakeup: Wakeup, client: Client) -> None:
    """O9: the event loop is not blocked; a relay that was woken releases the lock."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert wakeup.fall_asleep()
        started = loop.time()
        await wakeup.wait(0.05)
        assert loop.time() - started >= 0.05
        assert wakeup.is_asleep
        granting = loop.run_in_executor(None, lambda: client.grant("k1"))
        await asyncio.wait_for(wakeup.wait(600), 60)
        await granting

    asyncio.run(scenario())
    assert not wakeup.is_asleep


def test_grant_wakes_a_sleeping_relay(
    environ: dict[str, str], client: Client, rows: Rows, listener: psycopg.Connection
) -> None:
    """O9: the poll interval is longer than the test waits, so only the notification can cause the publication."""
    rarely_polling = environ | {"ENTITLEMENT_OUTBOX_POLL_INTERVAL": "1m"}
    with running_relay(rarely_polling, rows):
        until("the relay sleeps", lambda: _is_relay_asleep(rows))
        client.grant("k1", user_id="u1")
        until("the event is published", lambda: _count_published(rows) == 1, WAKEUP_SECONDS)
        assert _count_notifications(listener) == 1
    assert len(read_stream(environ)) == 1
    assert not _is_relay_asleep(rows)


# Returns when a relay waits for the lock ASLEEP, which this transaction shares. The loop runs in the server, so that
# the relay is still waiting when it ends.
_WAIT_FOR_LOCK_REQUEST = f"""
DO $$ BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)) AND NOT granted
                         AND locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = {ASLEEP_LOCK_ID}) LOOP
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$
"""


def test_relay_polls_once_more_before_it_sleeps(
    environ: dict[str, str], owner_url: str, rows: Rows, listener: psycopg.Connection
) -> None:
    """O9, V1: an event that is committed between the last poll and the lock is published without a notification.

    The poll interval is longer than the test waits, so only this additional poll can find the event.
    """
    with psycopg.connect(owner_url) as granting:
        enqueue(granting, "u_1/item1", 1)
        with running_relay(environ | {"ENTITLEMENT_OUTBOX_POLL_INTERVAL": "1m"}, rows):
            granting.execute(_WAIT_FOR_LOCK_REQUEST)
            granting.commit()
            until("the event is published", lambda: _count_published(rows) == 1, WAKEUP_SECONDS)
            assert _count_notifications(listener) == 0
            until("the relay sleeps", lambda: _is_relay_asleep(rows))
    assert len(read_stream(environ)) == 1


@pytest.mark.parametrize("broken", [{"ENTITLEMENT_OUTBOX_WAKEUP": "false"}, {"DATABASE_LISTEN_HOST": "127.0.0.1:9"}])
def test_relay_polls_without_a_wake_up(
    broken: dict[str, str], environ: dict[str, str], client: Client, rows: Rows
) -> None:
    """O9: the wake-up is disabled, or its server is unreachable."""
    with running_relay(environ | broken, rows):
        time.sleep(0.3)  # long enough for the relay to poll, find nothing and wait
        client.grant("k1", user_id="u1")
        until("the event is published", lambda: _count_published(rows) == 1)


def test_relay_polls_after_its_wake_up_connection_is_lost(environ: dict[str, str], client: Client, rows: Rows) -> None:
    """O9: the connection is terminated while the relay sleeps."""
    with running_relay(environ | {"ENTITLEMENT_OUTBOX_POLL_INTERVAL": "50ms"}, rows):
        until("the relay sleeps", lambda: _is_relay_asleep(rows))
        rows.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'grantwire-listen-outbox_events' AND datname = current_database()"
        )
        client.grant("k1", user_id="u1")
        until("the event is published", lambda: _count_published(rows) == 1)
    assert len(read_stream(environ)) == 1


@contextmanager
def running_relay(environ: dict[str, str], rows: Rows) -> Iterator[None]:
    """Run a relay in a thread, however long the block takes; its budget ends with the block."""
    is_over = threading.Event()
    budget = Budget(1000.0, clock=lambda: 2000.0 if is_over.is_set() else 0.0)
    with relay(environ) as runtime:
        thread = threading.Thread(target=lambda: runtime.run(budget))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            rows.execute("NOTIFY outbox_events")  # wakes the relay if it sleeps
            thread.join(timeout=90)
            assert not thread.is_alive()


def _is_relay_asleep(rows: Rows) -> bool:
    locks = rows.execute(
        "SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database"
        " WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND datname = current_database()"
        " AND (classid::bigint << 32 | objid::bigint) = %s",
        (ASLEEP_LOCK_ID,),
    )
    return bool(locks.fetchall())


def _count_published(rows: Rows) -> int:
    (row,) = rows.execute("SELECT count(*) AS n FROM outbox_events WHERE status = 'PUBLISHED'").fetchall()
    return int(row["n"])
