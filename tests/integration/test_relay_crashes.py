"""O2, O3: relays that die, or sleep past their lease, lose nothing and spoil nothing."""

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
from tests.support.paths import MIGRATIONS
from tests.support.servers import STATE
from tests.support.workers.relay_support import (
    drain,
    enqueue,
    enqueue_many,
    start,
    stream,
    until,
    versions,
    worker_environ,
)

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


def _later() -> datetime:
    """When every lease of 30 s has run out."""
    return datetime.now(UTC) + timedelta(minutes=1)


def test_a_relay_killed_between_publish_and_finalise_is_repeated_without_a_duplicate(
    environ: dict[str, str], rows: Rows
) -> None:
    """O2, O3: the same id goes to the stream again, JetStream drops it, and the outbox learns that it is there."""
    enqueue_many(rows, aggregates=3, each=2)
    with start("relay_sabotaged", environ, SABOTAGE="kill") as killed:
        assert killed.wait(timeout=20) == -signal.SIGKILL
    assert len(stream(environ)) == 6
    assert _states(rows) == {"IN_FLIGHT": 6}

    assert drain(environ)["published"] == 0
    result = drain(environ, _later())
    assert (result["published"], result["leases_lost"]) == (6, 0)
    assert len(stream(environ)) == 6
    assert _states(rows) == {"PUBLISHED": 6}
    # Taking over counts as an attempt, for the heads; what stood behind them was taken over too.
    assert rows.execute("SELECT DISTINCT attempt_count FROM outbox_events").fetchall() == [{"attempt_count": 1}]


def test_a_relay_that_sleeps_past_its_lease_changes_nothing(environ: dict[str, str], rows: Rows) -> None:
    """O2: two relays with one host name; the first is stopped, the second takes over, the first is continued."""
    enqueue_many(rows, aggregates=5, each=1)
    environ = environ | {"HOSTNAME": "one-name"}
    with start("relay_sabotaged", environ, SABOTAGE="stop") as stopped:
        try:
            until("the first relay is stopped", lambda: _is_stopped(stopped.pid))
            (owner,) = {row["locked_by"] for row in rows.execute("SELECT locked_by FROM outbox_events")}
            assert owner.startswith("one-name/")
            assert drain(environ, _later())["published"] == 5
            before = rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall()
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        output, _ = stopped.communicate(timeout=20)
    result = json.loads(output.splitlines()[-1])
    assert (result["published"], result["leases_lost"]) == (0, 1)
    assert "lease lost" in output
    assert rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall() == before
    assert len(stream(environ)) == 5


def test_a_lease_taken_over_in_mid_work_is_still_the_second_s(environ: dict[str, str], rows: Rows) -> None:
    """O2: the first relay comes back while the second still works: the rows stay the second's."""
    event_id = enqueue(rows, "u/item1", 1)
    with start("relay_sabotaged", environ, SABOTAGE="stop") as first:
        try:
            until("the first relay is stopped", lambda: _is_stopped(first.pid))
            rows.execute("UPDATE outbox_events SET lease_until = now()")
            with start("relay_sabotaged", environ, SABOTAGE="stop") as second:
                try:
                    until("the second relay is stopped", lambda: _is_stopped(second.pid))
                    held = rows.execute("SELECT * FROM outbox_events").fetchall()
                    os.kill(first.pid, signal.SIGCONT)
                    output, _ = first.communicate(timeout=20)
                    assert json.loads(output.splitlines()[-1])["leases_lost"] == 1
                    assert rows.execute("SELECT * FROM outbox_events").fetchall() == held
                finally:
                    os.kill(second.pid, signal.SIGCONT)
                output, _ = second.communicate(timeout=20)
        finally:
            first.kill()
    assert json.loads(output.splitlines()[-1])["published"] == 1
    assert rows.execute("SELECT event_id, status, attempt_count FROM outbox_events").fetchall() == [
        {"event_id": event_id, "status": "PUBLISHED", "attempt_count": 1}
    ]
    assert len(stream(environ)) == 1


def test_an_event_that_kills_its_relay_ends_failed(environ: dict[str, str], rows: Rows) -> None:
    """O2, O5: after ten deaths it is not tried again; neither its neighbours nor its successors die with it."""
    poison = enqueue(rows, "poison/item1", 1)
    enqueue(rows, "poison/item1", 2)
    enqueue_many(rows, aggregates=5, each=2)
    with start("relay_killed_by_event", environ, CRASHES="11", POISON="poison/item1") as deaths:
        output, _ = deaths.communicate(timeout=60)
    codes = [int(line) for line in output.splitlines() if line.isdigit()]
    assert codes == [signal.SIGKILL] * 10 + [0]
    failed = rows.execute("SELECT event_id, attempt_count, last_error FROM outbox_events WHERE status = 'FAILED'")
    assert failed.fetchall() == [
        {"event_id": poison, "attempt_count": 10, "last_error": "no attempt is left: its lease ran out"}
    ]
    assert _states(rows)["PUBLISHED"] == 10
    assert set(versions(stream(environ))) == {f"u{number}/item1" for number in range(5)}
    (successor,) = rows.execute(
        "SELECT status, attempt_count FROM outbox_events WHERE aggregate_version = 2 AND aggregate_key = 'poison/item1'"
    ).fetchall()
    assert successor["attempt_count"] == 0


def test_what_a_crash_of_postgresql_makes_the_relay_forget_is_repeated_without_a_duplicate(nats_url: str) -> None:
    """O2, O3, ADR 0022: its commits do not wait for the disk; a crash undoes the last of them, and no grant's."""
    # What nobody waits for stays in memory for as long as the server lives.
    server = PostgresServer(STATE / "forgetful", settings={"fsync": "off", "wal_writer_delay": "10s"})
    server.start()
    try:
        migrate(server.url(), MIGRATIONS)
        environ = worker_environ(server.url(), nats_url)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            enqueue_many(connection, aggregates=5, each=3)
        assert drain(environ)["published"] == 15
        with psycopg.connect(server.url(), row_factory=dict_row) as rows:
            assert _states(rows) == {"PUBLISHED": 15}
        server.kill()
        server.start()
        with psycopg.connect(server.url(), row_factory=dict_row, autocommit=True) as rows:
            forgotten = _states(rows)
            assert forgotten.get("PUBLISHED", 0) < 15
            assert sum(forgotten.values()) == 15
            drain(environ, _later())
            assert _states(rows) == {"PUBLISHED": 15}
        messages = stream(environ)
        assert len(messages) == 15
        assert versions(messages) == {f"u{number}/item1": [1, 2, 3] for number in range(5)}
    finally:
        server.destroy()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _states(rows: Rows) -> dict[str, int]:
    found = rows.execute("SELECT status, count(*) AS n FROM outbox_events GROUP BY status")
    return {row["status"]: row["n"] for row in found}
