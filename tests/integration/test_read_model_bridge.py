"""P1: the bridge records an event and projects it, or does neither."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.errors import InternalError
from grantwire.notifications.events import decode
from grantwire.notifications.inbox import record
from grantwire.workers.isolation import write_isolated
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.read_model import Right, clear, event_of, model, right
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.notifications.events import Event
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

# Both must always have seen the same events: of each right, the newest that the inbox knows is what the model shows.
_DISAGREEMENT = """
SELECT user_id, stock_keeping_unit
  FROM (SELECT n.user_id, n.stock_keeping_unit, max(n.version) AS version
          FROM notifications n JOIN processed_events USING (event_id) GROUP BY 1, 2) recorded
  FULL JOIN user_entitlements r USING (user_id, stock_keeping_unit)
 WHERE recorded.version IS DISTINCT FROM r.version
"""


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins with empty tables."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def _empty(rows: Rows) -> None:
    clear(rows)


def agree(rows: Rows) -> bool:
    """Whether inbox and read model have seen the same."""
    return rows.execute(_DISAGREEMENT).fetchall() == []


def test_an_event_is_projected_with_its_time_and_once(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """P1: a second delivery changes nothing, an older event that comes late neither."""
    newest = right("u_ü", 4, "item/1")
    stream.publish(event_of(newest), event_of(right("u_1", 1)))
    drain(environ)
    assert model(rows) == [right("u_1", 1), newest]
    before = rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall()
    late = event_of(right("u_ü", 3, "item/1"))
    stream.publish(late, late)
    assert drain(environ)["recorded"] == 1
    assert rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall() == before


def test_an_event_that_the_inbox_forgot_is_not_projected_over_a_newer_one(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """P1: the version guards where the inbox no longer can."""
    first, second = event_of(right("u", 1)), event_of(right("u", 2))
    stream.publish(first, second)
    drain(environ)
    rows.execute("DELETE FROM processed_events")
    stream.publish(first)
    assert drain(environ)["recorded"] == 1
    assert model(rows) == [right("u", 2)]


def test_what_is_refused_leaves_no_trace_and_its_neighbours_pass(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5, P1: culprits between good events, also one that would have been the newest of its right."""
    good = [right(f"u_{number:02}", 1) for number in range(40)]
    bad = [
        event(user_id="u" * 129),
        event(user_id="u_07", version=-1),
        event(user_id="u_08", version=9, stock_keeping_unit="a\x00b"),
    ]
    stream.publish(*map(event_of, good[:10]), bad[0], *map(event_of, good[10:20]), *bad[1:], *map(event_of, good[20:]))
    assert drain(environ) == {"recorded": 40, "duplicates": 0, "terminated": 3, "returned": 0}
    assert model(rows) == good
    assert agree(rows)


def test_batches_with_culprits_and_rights_in_common_do_not_deadlock(database_url: str, rows: Rows) -> None:
    """N5, P1: what is valid is written at once and in one order, however often the batch was halved before."""
    names = [f"u_{number:03}" for number in range(120)]

    def write(number: int) -> int:
        batch: list[Event] = [decode(event_of(right(name, number + 1)).SerializeToString(), {}) for name in names]
        for position in (7, 40, 90):
            batch.insert(position, decode(event(user_id="u" * 129).SerializeToString(), {}))
        with psycopg.connect(database_url, autocommit=True) as tx:
            written = write_isolated(tx, batch[:: 1 - 2 * (number % 2)], lambda events: record(tx, events))
        return len(written.result or []) - len(written.faults)

    for _ in range(2):
        rows.execute("TRUNCATE user_entitlements, processed_events, notifications")
        assert at_once(4, write) == [120 - 3] * 4
        assert model(rows) == [right(name, 4) for name in names]


def test_two_bridges_with_events_of_the_same_rights_end_with_the_newest(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """P1: the versions of each right are spread over both, and many come twice."""
    rights: list[Right] = [right(f"u_{number}", version) for version in (1, 3, 2, 5) for number in range(150)]
    events = [event_of(one) for one in rights]
    stream.publish(*events, *reversed(events[:300]))
    results = at_once(2, lambda _: drain(environ | {"NOTIFICATION_NATS_FETCH": "70"}))
    assert sum(result["recorded"] for result in results) == 600
    assert model(rows) == sorted(right(f"u_{number}", 5) for number in range(150))
    assert agree(rows)


@pytest.mark.parametrize(("crash", "effects"), [("die-before-commit", 0), ("die-before-ack", 25)])
def test_a_killed_bridge_leaves_inbox_and_read_model_in_agreement(
    environ: dict[str, str], stream: Stream, rows: Rows, crash: str, effects: int
) -> None:
    """N3, P1: kill -9 before the commit leaves nothing in either, after it all in both; repeats change nothing."""
    environ |= {"NOTIFICATION_NATS_ACK_WAIT": "300ms"}
    with Stream(environ):
        stream.publish(*(event_of(right(f"u_{number:02}", version)) for number in range(25) for version in (2, 1)))
    command = [sys.executable, "-m", "tests.support.workers.bridge_worker", "10", crash]
    worker = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, **environ}
    killed = subprocess.run(command, env=worker, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert stream.consumer().num_ack_pending == 50
    assert len(model(rows)) == effects
    assert agree(rows)
    before = rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall()
    seen = 0
    deadline = time.monotonic() + 10
    while seen < 50 and time.monotonic() < deadline:
        result = drain(environ)
        seen += result["recorded"] + result["duplicates"]
    assert seen == 50
    assert model(rows) == [right(f"u_{number:02}", 2) for number in range(25)]
    assert agree(rows)
    if effects:
        assert rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall() == before


def test_a_database_without_the_read_model_is_reported_before_anything_is_fetched(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N6, P1: a bridge that is deployed before its migration waits for it and burns no delivery."""
    stream.publish(event())
    rows.execute("ALTER TABLE user_entitlements RENAME TO elsewhere")
    with pytest.raises(InternalError, match="user_entitlements"):
        drain(environ)
    assert stream.deliveries() == 0
    assert rows.execute("SELECT count(*) AS n FROM processed_events").fetchall() == [{"n": 0}]
