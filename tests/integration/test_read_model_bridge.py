"""P1: the bridge records an event and projects it, or does neither."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.errors import InternalError
from grantwire.events.decoding import decode
from grantwire.notifications.inbox import record_events
from grantwire.workers.isolation import write_isolated
from tests.support.concurrency import run_concurrently
from tests.support.module_database import database_url
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.read_model import Entitlement, clear_tables, entitlement, event_for, read_model_rows
from tests.support.servers import newest_postgres
from tests.support.waiting import until
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from grantwire.events.decoding import Event
    from tests.integration.conftest import Rows

__all__ = ["database_url"]

pytestmark = newest_postgres

# Entitlements whose row in the read model is not the newest version that the inbox has recorded.
_INCONSISTENT_ROWS = """
SELECT user_id, stock_keeping_unit
  FROM (SELECT n.user_id, n.stock_keeping_unit, max(n.version) AS version
          FROM notifications n JOIN processed_events USING (event_id) GROUP BY 1, 2) recorded
  FULL JOIN user_entitlements r USING (user_id, stock_keeping_unit)
 WHERE recorded.version IS DISTINCT FROM r.version
"""


@pytest.fixture(autouse=True)
def _clear_tables(rows: Rows) -> None:
    clear_tables(rows)


def are_consistent(rows: Rows) -> bool:
    """Return whether inbox and read model have the same events."""
    return rows.execute(_INCONSISTENT_ROWS).fetchall() == []


def test_event_is_projected_once_with_its_time(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """P1: neither a redelivery nor an older event that arrives late changes anything."""
    newest = entitlement("u_ü", 4, "item/1")
    stream.publish(event_for(newest), event_for(entitlement("u_1", 1)))
    drain(environ)
    assert read_model_rows(rows) == [entitlement("u_1", 1), newest]
    before = rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall()
    late = event_for(entitlement("u_ü", 3, "item/1"))
    stream.publish(late, late)
    assert drain(environ)["recorded"] == 1
    assert rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall() == before


def test_event_swept_from_inbox_does_not_overwrite_newer_version(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """P1: the version decides when the inbox no longer knows the event."""
    first, second = event_for(entitlement("u", 1)), event_for(entitlement("u", 2))
    stream.publish(first, second)
    drain(environ)
    rows.execute("DELETE FROM processed_events")
    stream.publish(first)
    assert drain(environ)["recorded"] == 1
    assert read_model_rows(rows) == [entitlement("u", 2)]


def test_refused_event_is_not_projected_and_others_are(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N5, P1: bad events between good ones, including one that would be the newest of its entitlement."""
    good = [entitlement(f"u_{number:02}", 1) for number in range(40)]
    bad = [
        event(user_id="u" * 129),
        event(user_id="u_07", version=9, source_id="a\x00b"),
        event(user_id="u_08", version=9, stock_keeping_unit="s" * 129),
    ]
    stream.publish(
        *map(event_for, good[:10]), bad[0], *map(event_for, good[10:20]), *bad[1:], *map(event_for, good[20:])
    )
    assert drain(environ) == {"recorded": 40, "duplicates": 0, "terminated": 3, "not_genuine": 0, "returned": 0}
    assert read_model_rows(rows) == good
    assert are_consistent(rows)


def test_batches_with_refused_events_and_common_entitlements_do_not_deadlock(database_url: str, rows: Rows) -> None:
    """N5, P1: valid events are written together and in one order, however often the batch was halved before."""
    names = [f"u_{number:03}" for number in range(120)]

    def write(number: int) -> int:
        batch: list[Event] = [
            decode(event_for(entitlement(name, number + 1)).SerializeToString(), {}) for name in names
        ]
        for position in (7, 40, 90):
            batch.insert(position, decode(event(user_id="u" * 129).SerializeToString(), {}))
        with psycopg.connect(database_url, autocommit=True) as tx:
            written = write_isolated(tx, batch[:: 1 - 2 * (number % 2)], lambda events: record_events(tx, events))
        return len(written.result or []) - len(written.faults)

    for _ in range(2):
        rows.execute("TRUNCATE user_entitlements, processed_events, notifications")
        assert run_concurrently(4, write) == [120 - 3] * 4
        assert read_model_rows(rows) == [entitlement(name, 4) for name in names]


def test_two_bridges_end_with_newest_version_of_each_entitlement(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """P1: the versions of each entitlement are spread over both bridges, and many are repeated."""
    entitlements: list[Entitlement] = [
        entitlement(f"u_{number}", version) for version in (1, 3, 2, 5) for number in range(150)
    ]
    events = [event_for(item) for item in entitlements]
    stream.publish(*events, *reversed(events[:300]))
    results = run_concurrently(2, lambda _: drain(environ | {"NOTIFICATION_NATS_FETCH": "70"}))
    assert sum(result["recorded"] for result in results) == 600
    assert read_model_rows(rows) == sorted(entitlement(f"u_{number}", 5) for number in range(150))
    assert are_consistent(rows)


@pytest.mark.parametrize(("crash", "effects"), [("die-before-commit", 0), ("die-before-ack", 25)])
def test_killed_bridge_leaves_inbox_and_read_model_consistent(
    environ: dict[str, str], stream: Stream, rows: Rows, crash: str, effects: int
) -> None:
    """N3, P1: kill -9 before the commit writes neither, after it both; redeliveries change nothing."""
    environ |= {"NOTIFICATION_NATS_ACK_WAIT": "1s"}
    with Stream(environ):
        stream.publish(
            *(event_for(entitlement(f"u_{number:02}", version)) for number in range(25) for version in (2, 1))
        )
    command = [sys.executable, "-m", "tests.support.workers.bridge_worker", "60", crash]
    worker = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, **environ}
    killed = subprocess.run(command, env=worker, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert stream.consumer_info().num_ack_pending == 50
    assert len(read_model_rows(rows)) == effects
    assert are_consistent(rows)
    before = rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall()
    handled = 0

    def are_redelivered() -> bool:
        nonlocal handled
        result = drain(environ)
        handled += result["recorded"] + result["duplicates"]
        return handled >= 50

    until("JetStream delivers all again", are_redelivered)
    assert handled == 50
    assert read_model_rows(rows) == [entitlement(f"u_{number:02}", 2) for number in range(25)]
    assert are_consistent(rows)
    if effects:
        assert rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall() == before


def test_missing_read_model_is_reported_before_anything_is_fetched(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N6, P1: a bridge that is deployed before its migration waits for it and uses up no delivery."""
    stream.publish(event())
    rows.execute("ALTER TABLE user_entitlements RENAME TO renamed")
    with pytest.raises(InternalError, match="user_entitlements"):
        drain(environ)
    assert stream.delivery_count() == 0
    assert rows.execute("SELECT count(*) AS n FROM processed_events").fetchall() == [{"n": 0}]
