"""O2, O3: a relay that crashes, or is stopped until its lease expires, loses no event and changes no other claim."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import dict_row

from infra.local.servers.postgres import PostgresServer
from tests.support.migrations import migrate
from tests.support.nats_users import configured
from tests.support.servers import STATE, newest_postgres
from tests.support.waiting import until
from tests.support.workers.relay_support import (
    drain,
    enqueue,
    enqueue_many,
    read_stream,
    start_worker,
    versions_by_aggregate,
    worker_environ,
)

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


def _after_leases() -> datetime:
    """Return a time at which every lease of 30 s has expired."""
    return datetime.now(UTC) + timedelta(minutes=1)


@newest_postgres
def test_relay_killed_between_publish_and_complete_causes_no_duplicate(environ: dict[str, str], rows: Rows) -> None:
    """O2, O3: the next relay publishes the same ids again, JetStream drops them, and the events become PUBLISHED."""
    enqueue_many(rows, aggregates=3, each=2)
    with start_worker("relay_sabotaged", environ, SABOTAGE="kill") as killed:
        assert killed.wait(timeout=60) == -signal.SIGKILL
    assert len(read_stream(environ)) == 6
    assert _count_by_status(rows) == {"IN_FLIGHT": 6}

    assert drain(environ)["published"] == 0
    result = drain(environ, _after_leases())
    assert (result["published"], result["leases_lost"]) == (6, 0)
    assert len(read_stream(environ)) == 6
    assert _count_by_status(rows) == {"PUBLISHED": 6}
    # Reclaiming counts as an attempt, also for the events behind the heads.
    assert rows.execute("SELECT DISTINCT attempt_count FROM outbox_events").fetchall() == [{"attempt_count": 1}]


@newest_postgres
def test_relay_stopped_until_its_lease_expires_changes_nothing(environ: dict[str, str], rows: Rows) -> None:
    """O2: with the same host name; the first relay is stopped, the second reclaims, the first continues."""
    enqueue_many(rows, aggregates=5, each=1)
    environ = environ | {"HOSTNAME": "same-name"}
    with start_worker("relay_sabotaged", environ, SABOTAGE="stop") as stopped:
        try:
            until("the first relay is stopped", lambda: _is_stopped(stopped.pid))
            (owner,) = {row["locked_by"] for row in rows.execute("SELECT locked_by FROM outbox_events")}
            assert owner.startswith("same-name/")
            assert drain(environ, _after_leases())["published"] == 5
            before = rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall()
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        output, _ = stopped.communicate(timeout=60)
    result = json.loads(output.splitlines()[-1])
    assert (result["published"], result["leases_lost"]) == (0, 1)
    assert "lease lost" in output
    assert rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall() == before
    assert len(read_stream(environ)) == 5


@newest_postgres
def test_relay_that_lost_its_lease_does_not_disturb_the_next_claim(environ: dict[str, str], rows: Rows) -> None:
    """O2: the first relay continues while the second still publishes; the second keeps its claim."""
    event_id = enqueue(rows, "u/item1", 1)
    with start_worker("relay_sabotaged", environ, SABOTAGE="stop") as first:
        try:
            until("the first relay is stopped", lambda: _is_stopped(first.pid))
            rows.execute("UPDATE outbox_events SET lease_until = now()")
            with start_worker("relay_sabotaged", environ, SABOTAGE="stop") as second:
                try:
                    until("the second relay is stopped", lambda: _is_stopped(second.pid))
                    claimed = rows.execute("SELECT * FROM outbox_events").fetchall()
                    os.kill(first.pid, signal.SIGCONT)
                    output, _ = first.communicate(timeout=60)
                    assert json.loads(output.splitlines()[-1])["leases_lost"] == 1
                    assert rows.execute("SELECT * FROM outbox_events").fetchall() == claimed
                finally:
                    os.kill(second.pid, signal.SIGCONT)
                output, _ = second.communicate(timeout=60)
        finally:
            first.kill()
    assert json.loads(output.splitlines()[-1])["published"] == 1
    assert rows.execute("SELECT event_id, status, attempt_count FROM outbox_events").fetchall() == [
        {"event_id": event_id, "status": "PUBLISHED", "attempt_count": 1}
    ]
    assert len(read_stream(environ)) == 1


@newest_postgres
def test_event_that_kills_its_relay_becomes_failed(environ: dict[str, str], rows: Rows) -> None:
    """O2, O5: after ten crashes it is FAILED; the other aggregates and its successors are not affected."""
    poison = enqueue(rows, "poison/item1", 1)
    enqueue(rows, "poison/item1", 2)
    enqueue_many(rows, aggregates=5, each=2)
    with start_worker("relay_killed_by_event", environ, CRASHES="11", POISON="poison/item1") as relays:
        output, _ = relays.communicate(timeout=60)
    codes = [int(line) for line in output.splitlines() if line.isdigit()]
    assert codes == [signal.SIGKILL] * 10 + [0]
    failed = rows.execute("SELECT event_id, attempt_count, last_error FROM outbox_events WHERE status = 'FAILED'")
    assert failed.fetchall() == [
        {"event_id": poison, "attempt_count": 10, "last_error": "lease expired on the last attempt"}
    ]
    assert _count_by_status(rows)["PUBLISHED"] == 10
    assert set(versions_by_aggregate(read_stream(environ))) == {f"u{number}/item1" for number in range(5)}
    (successor,) = rows.execute(
        "SELECT status, attempt_count FROM outbox_events WHERE aggregate_version = 2 AND aggregate_key = 'poison/item1'"
    ).fetchall()
    assert successor["attempt_count"] == 0


def test_outcomes_lost_in_a_postgresql_crash_cause_no_duplicate(nats_url: str) -> None:
    """O2, O3, ADR 0022: the relay's commits are asynchronous; a crash can undo them, but no grant."""
    # With this delay, asynchronous commits stay in memory until the server is killed.
    server = PostgresServer(STATE / "forgetful", settings={"fsync": "off", "wal_writer_delay": "10s"})
    server.start()
    try:
        migrate(server.url())
        environ = configured(worker_environ(server.url(), nats_url))
        with psycopg.connect(server.url(), autocommit=True) as connection:
            enqueue_many(connection, aggregates=5, each=3)
        assert drain(environ)["published"] == 15
        with psycopg.connect(server.url(), row_factory=dict_row) as rows:
            assert _count_by_status(rows) == {"PUBLISHED": 15}
        server.kill()
        server.start()
        with psycopg.connect(server.url(), row_factory=dict_row, autocommit=True) as rows:
            after_crash = _count_by_status(rows)
            assert after_crash.get("PUBLISHED", 0) < 15
            assert sum(after_crash.values()) == 15
            drain(environ, _after_leases())
            assert _count_by_status(rows) == {"PUBLISHED": 15}
        messages = read_stream(environ)
        assert len(messages) == 15
        assert versions_by_aggregate(messages) == {f"u{number}/item1": [1, 2, 3] for number in range(5)}
    finally:
        server.destroy()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _count_by_status(rows: Rows) -> dict[str, int]:
    counts = rows.execute("SELECT status, count(*) AS n FROM outbox_events GROUP BY status")
    return {row["status"]: row["n"] for row in counts}
