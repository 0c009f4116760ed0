"""O3, O4, O5, O7, O8: a failed event is retried later or becomes FAILED, and blocks only its own aggregate."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import nats
import psycopg
import pytest
from nats.js.errors import NotFoundError

from grantwire.errors import RetryableError
from grantwire.outbox.publication import BatchPublication
from grantwire.outbox.store import discard, redrive
from grantwire.workers.budget import Budget
from tests.support.nats_users import as_admin, configure
from tests.support.servers import newest_postgres
from tests.support.waiting import until
from tests.support.workers.relay_support import (
    drain,
    enqueue,
    enqueue_many,
    read_stream,
    relay,
    versions_by_aggregate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.nats import NatsServer
    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows

pytestmark = newest_postgres

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def own_nats(environ: dict[str, str], nats_server: NatsServer) -> dict[str, str]:
    """The environment of a relay with its own NATS server, which the test may stop."""
    timeouts = {"NATS_PUBLISH_TIMEOUT": "300ms", "NATS_CONNECT_TIMEOUT": "300ms"}
    configure(environ | {"NATS_URL": nats_server.url})
    return environ | {"NATS_URL": nats_server.url} | timeouts


def test_message_has_the_payload_and_headers_of_its_event(environ: dict[str, str], rows: Rows) -> None:
    """N1, O3: a consumer can read the headers without decoding the payload."""
    event_id = enqueue(rows, "ü 100%/item1", 1, user_id="ü 100%")
    assert drain(environ)["published"] == 1
    (message,) = read_stream(environ)
    assert message.headers["Nats-Msg-Id"] == message.headers["event_id"] == message.event.event_id == str(event_id)
    assert message.headers["event_type"] == message.event.event_type == "EntitlementGranted"
    assert message.headers["occurred_at"] == "2026-11-16T03:00:00.123456Z"
    assert message.headers["trace_id"] == "1-0-0"
    assert unquote(message.headers["aggregate_key"]) == "ü 100%/item1"
    assert message.event.user_id == "ü 100%"
    assert message.event.occurred_at.ToJsonString() == "2026-11-16T03:00:00.123456Z"


def test_invalid_payload_fails_after_one_attempt(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """O5: the event becomes FAILED and is logged as an error; other aggregates are published."""
    poison = enqueue(rows, "poison/item1", 1, user_id="")
    enqueue_many(rows, aggregates=3, each=1)
    result = drain(environ)
    assert (result["published"], result["failed"]) == (3, 1)
    (row,) = rows.execute("SELECT * FROM outbox_events WHERE status = 'FAILED'").fetchall()
    assert (row["event_id"], row["attempt_count"], row["ready"], row["locked_by"]) == (poison, 1, False, None)
    assert "these fields must not be empty" in row["last_error"]
    errors = [line for line in capsys.readouterr().out.splitlines() if '"level":"ERROR"' in line]
    assert len(errors) == 1
    assert str(poison) in errors[0]


def test_message_that_is_too_large_fails_after_one_attempt(environ: dict[str, str], rows: Rows) -> None:
    """O5: the error is permanent; the successors of the event are released unchanged."""
    enqueue(rows, "u/item1", 1)
    large = enqueue(rows, "u/item1", 2, source_id="x" * 2_000_000)
    enqueue(rows, "u/item1", 3)
    result = drain(environ)
    assert (result["published"], result["failed"], result["released"]) == (1, 1, 1)
    (dead_letter,) = rows.execute("SELECT dead_letter_id, error FROM dead_letters WHERE kind = 'outbox'").fetchall()
    assert dead_letter["dead_letter_id"] == large
    assert "exceeds max_payload" in dead_letter["error"]
    assert _get_event(rows, 3) == {"status": "PENDING", "attempt_count": 0, "ready": False}


def test_failed_head_blocks_its_successors_until_it_is_redriven(environ: dict[str, str], rows: Rows) -> None:
    """O8, Q2: after the redrive all events of the aggregate are published in order, with the same ids."""
    poison = enqueue(rows, "u/item1", 1, user_id="")
    enqueue(rows, "u/item1", 2)
    enqueue(rows, "other/item1", 1)
    drain(environ)
    enqueue(rows, "u/item1", 3)
    assert drain(environ)["published"] == 0
    assert versions_by_aggregate(read_stream(environ)) == {"other/item1": [1]}
    rows.execute('UPDATE outbox_events SET payload = payload || \'{"user_id": "u"}\' WHERE event_id = %s', (poison,))
    with psycopg.connect(environ["DATABASE_URL"]) as tx:
        assert redrive(tx, [poison]) == [poison]
        assert redrive(tx, [poison]) == []
    (head,) = rows.execute("SELECT * FROM outbox_events WHERE event_id = %s", (poison,)).fetchall()
    assert (head["status"], head["attempt_count"], head["ready"]) == ("PENDING", 0, True)
    assert drain(environ)["published"] == 3
    assert versions_by_aggregate(read_stream(environ))["u/item1"] == [1, 2, 3]


def test_failed_head_blocks_its_successors_until_it_is_discarded(environ: dict[str, str], rows: Rows) -> None:
    """O8, Q3: the event becomes DISCARDED and its successors are published."""
    poison = enqueue(rows, "u/item1", 1, user_id="")
    successor = enqueue(rows, "u/item1", 2)
    enqueue(rows, "u/item1", 3)
    drain(environ)
    with psycopg.connect(environ["DATABASE_URL"]) as tx:
        assert discard(tx, [poison, successor], NOW) == [poison]
    assert rows.execute("SELECT discarded_at FROM outbox_events WHERE status = 'DISCARDED'").fetchall() == [
        {"discarded_at": NOW}
    ]
    assert drain(environ)["published"] == 2
    assert versions_by_aggregate(read_stream(environ)) == {"u/item1": [2, 3]}


def test_outage_of_nats_loses_no_event(own_nats: dict[str, str], rows: Rows, nats_server: NatsServer) -> None:
    """O3, O4: events in flight are retried after the backoff with the same ids; other events lose no attempt."""
    now = datetime.now(UTC) + timedelta(hours=1)
    enqueue(rows, "first/item1", 1)
    with _running_relay(own_nats, 20, now):
        until("the relay works", lambda: _count_by_status(rows) == {"PUBLISHED": 1})
        with _suspended(nats_server):
            enqueue_many(rows, aggregates=3, each=2)
            until("the publish timeout expires", lambda: _count_by_attempts(rows) == {0: 4, 1: 3})
            nats_server.kill()
    for row in rows.execute("SELECT * FROM outbox_events WHERE attempt_count = 1"):
        assert (row["status"], row["last_error"], row["locked_by"]) == ("PENDING", "no acknowledgement in time", None)
        assert timedelta(seconds=0.5) <= row["next_retry_at"] - now <= timedelta(seconds=1.5)
    before = rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall()
    with pytest.raises(RetryableError, match="NATS is unreachable"):
        drain(own_nats, now + timedelta(seconds=10))
    assert rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall() == before
    nats_server.start()
    assert drain(own_nats, now)["published"] == 0
    assert drain(own_nats, now + timedelta(seconds=10))["published"] == 6
    messages = read_stream(own_nats)
    assert len(messages) == 7
    assert versions_by_aggregate(messages) == {
        "first/item1": [1],
        **{f"u{number}/item1": [1, 2] for number in range(3)},
    }


def test_relay_reconnects_to_nats(own_nats: dict[str, str], rows: Rows, nats_server: NatsServer) -> None:
    """O2: while NATS is down, the relay claims no event and uses no attempt."""
    enqueue(rows, "first/item1", 1)
    with _running_relay(own_nats, 20):
        until("the relay works", lambda: _get_event(rows, 1)["status"] == "PUBLISHED")
        nats_server.kill()
        enqueue(rows, "second/item1", 2)
        time.sleep(0.3)  # long enough for a relay that ignores the outage to claim it
        assert _get_event(rows, 2) == {"status": "PENDING", "attempt_count": 0, "ready": True}
        nats_server.start()
        until("the relay works again", lambda: _get_event(rows, 2)["status"] == "PUBLISHED")
    assert _count_by_attempts(rows) == {0: 2}


def test_relay_waits_for_a_deleted_stream(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """N3, O4: it claims nothing until the stream is configured again, and then continues without a restart."""
    enqueue(rows, "first/item1", 1)
    with _running_relay(environ | {"ENTITLEMENT_OUTBOX_BACKOFF_BASE": "10ms"}, 20):
        until("the relay works", lambda: _get_event(rows, 1)["status"] == "PUBLISHED")
        asyncio.run(_delete_stream(as_admin(environ), environ["ENTITLEMENT_NATS_STREAM"]))
        enqueue(rows, "second/item1", 2)
        until("the publish fails", lambda: _get_event(rows, 2)["attempt_count"] == 1)
        time.sleep(0.3)  # long enough for a relay that creates the stream, or claims without one
        assert _get_event(rows, 2) == {"status": "PENDING", "attempt_count": 1, "ready": True}
        configure(environ)
        until("the relay works again", lambda: _get_event(rows, 2)["status"] == "PUBLISHED")
    assert _get_event(rows, 2)["attempt_count"] == 1
    output = capsys.readouterr().out
    assert f"NATS topology: stream {environ['ENTITLEMENT_NATS_STREAM']}: is missing; invoke configure_streams" in output
    assert "dependency unavailable, retrying" in output


def test_lease_is_renewed_while_publishing_is_slow(
    own_nats: dict[str, str], rows: Rows, nats_server: NatsServer
) -> None:
    """O6: NATS takes longer than the lease; the event stays claimed and is published once."""
    slow = own_nats | {"NATS_PUBLISH_TIMEOUT": "20s", "ENTITLEMENT_OUTBOX_LEASE": "1s"}
    enqueue(rows, "first/item1", 1)
    with _running_relay(slow, 20) as result:
        until("the relay works", lambda: _get_event(rows, 1)["status"] == "PUBLISHED")
        with _suspended(nats_server):
            enqueue(rows, "second/item1", 2)
            until("it is claimed", lambda: _get_event(rows, 2)["status"] == "IN_FLIGHT")
            (claimed,) = rows.execute("SELECT locked_at FROM outbox_events WHERE aggregate_version = 2").fetchall()
            until(
                "the lease is renewed",
                lambda: _lease_until(rows) > claimed["locked_at"] + timedelta(seconds=1.5),
            )
        until("it is published", lambda: _get_event(rows, 2)["status"] == "PUBLISHED")
    assert (result["published"], result["leases_lost"], result["retried"]) == (2, 0, 0)
    assert len(read_stream(own_nats)) == 2


def test_relay_releases_unsent_events_when_its_budget_ends(
    environ: dict[str, str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7: the events lose no attempt, and the next relay continues in order. The budget ends after the first events."""
    publications: list[BatchPublication] = []

    class Observed(BatchPublication):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            publications.append(self)

    def clock() -> float:
        return 2.0 if any(publication.published for publication in publications) else 0.99

    monkeypatch.setattr("grantwire.outbox.relay.BatchPublication", Observed)
    enqueue_many(rows, aggregates=1, each=1000)
    with relay(environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "1000"}) as runtime:
        result = runtime.run(Budget(1.0, clock=clock))
    assert 0 < result["published"] < 1000
    assert result["published"] + result["released"] == 1000
    assert _count_by_status(rows).keys() == {"PENDING", "PUBLISHED"}
    assert _count_by_attempts(rows) == {0: 1000}
    drain(environ)
    messages = read_stream(environ)
    assert len(messages) == 1000
    assert versions_by_aggregate(messages) == {"u0/item1": list(range(1, 1001))}


def test_outage_of_postgresql_costs_no_attempt(server: PostgresServer, environ: dict[str, str]) -> None:
    """O2: the relay waits for PostgreSQL within its budget; with `until_idle` it raises RetryableError."""
    environ = environ | {"DATABASE_URL": server.url()}
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("TRUNCATE outbox_events")
        enqueue(connection, "outage/item1", 1)
    with _running_relay(environ, 20) as result:
        until("the first event is in the stream", lambda: _count_messages(environ) == 1)
        server.stop()
        with pytest.raises(RetryableError):
            drain(environ)
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            enqueue(connection, "outage/item1", 2)
        until("the second event is in the stream", lambda: _count_messages(environ) == 2)
    assert (result["published"], result["failed"], result["leases_lost"]) == (2, 0, 0)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        assert connection.execute("SELECT DISTINCT status, attempt_count FROM outbox_events").fetchall() == [
            ("PUBLISHED", 0)
        ]


@contextmanager
def _running_relay(environ: dict[str, str], seconds: float, now: datetime | None = None) -> Iterator[Counter[str]]:
    """Run a relay in a thread until the block ends; the yielded counter then has its result."""
    result: Counter[str] = Counter()
    done = threading.Event()

    def run() -> None:
        with relay(environ, now) as runtime:
            deadline = time.monotonic() + seconds
            until_done = Budget(deadline, clock=lambda: deadline if done.is_set() else time.monotonic())
            result.update(runtime.run(until_done))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield result
    finally:
        done.set()
        thread.join()


@contextmanager
def _suspended(server: NatsServer) -> Iterator[None]:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if server.is_alive():
            os.kill(server.pid, signal.SIGCONT)


async def _delete_stream(environ: dict[str, str], name: str) -> None:
    client = await nats.connect(environ["NATS_URL"])
    await client.jetstream().delete_stream(name)
    await client.close()


def _count_messages(environ: dict[str, str]) -> int:
    try:
        return len(read_stream(environ))
    except NotFoundError:
        return 0


def _get_event(rows: Rows, version: int) -> dict[str, object]:
    (row,) = rows.execute(
        "SELECT status, attempt_count, ready FROM outbox_events WHERE aggregate_version = %s", (version,)
    ).fetchall()
    return row


def _count_by_status(rows: Rows) -> dict[str, int]:
    counts = rows.execute("SELECT status, count(*) AS n FROM outbox_events GROUP BY status")
    return {row["status"]: row["n"] for row in counts}


def _count_by_attempts(rows: Rows) -> dict[int, int]:
    counts = rows.execute("SELECT attempt_count, count(*) AS n FROM outbox_events GROUP BY attempt_count")
    return {row["attempt_count"]: row["n"] for row in counts}


def _lease_until(rows: Rows) -> datetime:
    (row,) = rows.execute("SELECT lease_until FROM outbox_events WHERE status = 'IN_FLIGHT'").fetchall()
    lease_until: datetime = row["lease_until"]
    return lease_until
