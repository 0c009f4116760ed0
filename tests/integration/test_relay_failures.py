"""O3, O4, O5, O7, O8: what fails is put off or given up, and holds back nothing but its own aggregate."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

import nats
import psycopg
import pytest
from nats.js.errors import NotFoundError

from grantwire.errors import RetryableError
from grantwire.outbox.store import discard, redrive
from grantwire.workers.budget import Budget
from tests.support.workers.relay_support import budget, drain, enqueue, enqueue_many, relay, stream, until, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.nats import NatsServer
    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def private(environ: dict[str, str], nats_server: NatsServer) -> dict[str, str]:
    """The environment of a relay whose broker this test may stop."""
    return environ | {"NATS_URL": nats_server.url, "NATS_PUBLISH_TIMEOUT": "300ms", "NATS_CONNECT_TIMEOUT": "300ms"}


def test_an_event_travels_with_its_headers(environ: dict[str, str], rows: Rows) -> None:
    """N1, O3: the payload, and what a consumer may want to know without decoding it."""
    event_id = enqueue(rows, "ü 100%/item1", 1, user_id="ü 100%")
    assert drain(environ)["published"] == 1
    (message,) = stream(environ)
    assert message.headers["Nats-Msg-Id"] == message.headers["event_id"] == message.event.event_id == str(event_id)
    assert message.headers["event_type"] == message.event.event_type == "EntitlementGranted"
    assert message.headers["occurred_at"] == "2026-11-16T03:00:00.123456Z"
    assert message.headers["trace_id"] == "1-0-0"
    assert unquote(message.headers["aggregate_key"]) == "ü 100%/item1"
    assert message.event.user_id == "ü 100%"
    assert message.event.occurred_at.ToJsonString() == "2026-11-16T03:00:00.123456Z"


def test_a_payload_that_cannot_be_encoded_fails_at_once(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """O5: FAILED after one attempt and told about, while its neighbours flow."""
    poison = enqueue(rows, "poison/item1", 1, user_id="")
    enqueue_many(rows, aggregates=3, each=1)
    result = drain(environ)
    assert (result["published"], result["failed"]) == (3, 1)
    (row,) = rows.execute("SELECT * FROM outbox_events WHERE status = 'FAILED'").fetchall()
    assert (row["event_id"], row["attempt_count"], row["ready"], row["locked_by"]) == (poison, 1, False, None)
    assert "none of these may be empty" in row["last_error"]
    errors = [line for line in capsys.readouterr().out.splitlines() if '"level":"ERROR"' in line]
    assert len(errors) == 1
    assert str(poison) in errors[0]


def test_a_message_that_the_broker_will_never_take_fails_at_once(environ: dict[str, str], rows: Rows) -> None:
    """O5: too large is permanent; the rest of its aggregate is given back as it was."""
    enqueue(rows, "u/item1", 1)
    large = enqueue(rows, "u/item1", 2, source_id="x" * 2_000_000)
    enqueue(rows, "u/item1", 3)
    result = drain(environ)
    assert (result["published"], result["failed"], result["released"]) == (1, 1, 1)
    (letter,) = rows.execute("SELECT dead_letter_id, error FROM dead_letters WHERE kind = 'outbox'").fetchall()
    assert letter["dead_letter_id"] == large
    assert "larger than the server takes" in letter["error"]
    assert _row(rows, 3) == {"status": "PENDING", "attempt_count": 0, "ready": False}


def test_a_failed_head_parks_its_successors_until_it_is_redriven(environ: dict[str, str], rows: Rows) -> None:
    """O8, Q2: others flow; after the redrive all of them come, in order, with the same ids."""
    poison = enqueue(rows, "u/item1", 1, user_id="")
    enqueue(rows, "u/item1", 2)
    enqueue(rows, "other/item1", 1)
    drain(environ)
    enqueue(rows, "u/item1", 3)
    assert drain(environ)["published"] == 0
    assert versions(stream(environ)) == {"other/item1": [1]}
    rows.execute('UPDATE outbox_events SET payload = payload || \'{"user_id": "u"}\' WHERE event_id = %s', (poison,))
    with psycopg.connect(environ["DATABASE_URL"]) as tx:
        assert redrive(tx, [poison]) == [poison]
        assert redrive(tx, [poison]) == []
    (head,) = rows.execute("SELECT * FROM outbox_events WHERE event_id = %s", (poison,)).fetchall()
    assert (head["status"], head["attempt_count"], head["ready"]) == ("PENDING", 0, True)
    assert drain(environ)["published"] == 3
    assert versions(stream(environ))["u/item1"] == [1, 2, 3]


def test_a_failed_head_lets_its_successors_go_when_it_is_discarded(environ: dict[str, str], rows: Rows) -> None:
    """O8, Q3: the outbox event becomes DISCARDED and its successors flow."""
    poison = enqueue(rows, "u/item1", 1, user_id="")
    waiting = enqueue(rows, "u/item1", 2)
    enqueue(rows, "u/item1", 3)
    drain(environ)
    with psycopg.connect(environ["DATABASE_URL"]) as tx:
        assert discard(tx, [poison, waiting], NOW) == [poison]
    assert rows.execute("SELECT discarded_at FROM outbox_events WHERE status = 'DISCARDED'").fetchall() == [
        {"discarded_at": NOW}
    ]
    assert drain(environ)["published"] == 2
    assert versions(stream(environ)) == {"u/item1": [2, 3]}


def test_ten_seconds_without_a_broker_lose_nothing(
    private: dict[str, str], rows: Rows, nats_server: NatsServer
) -> None:
    """O3, O4: what was in flight is put off as the backoff says; what was not keeps its attempts; the ids stay."""
    now = datetime.now(UTC) + timedelta(hours=1)
    enqueue(rows, "first/item1", 1)
    with _working(private, 20, now):
        until("the relay works", lambda: _states(rows) == {"PUBLISHED": 1})
        with _frozen(nats_server):
            enqueue_many(rows, aggregates=3, each=2)
            until("the broker's silence is noticed", lambda: _attempts(rows) == {0: 4, 1: 3})
            nats_server.kill()
    for row in rows.execute("SELECT * FROM outbox_events WHERE attempt_count = 1"):
        assert (row["status"], row["last_error"], row["locked_by"]) == ("PENDING", "no acknowledgement in time", None)
        assert timedelta(seconds=0.5) <= row["next_retry_at"] - now <= timedelta(seconds=1.5)
    before = rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall()
    with pytest.raises(RetryableError, match="NATS is unreachable"):
        drain(private, now + timedelta(seconds=10))
    assert rows.execute("SELECT * FROM outbox_events ORDER BY event_id").fetchall() == before
    nats_server.start()
    assert drain(private, now)["published"] == 0
    assert drain(private, now + timedelta(seconds=10))["published"] == 6
    messages = stream(private)
    assert len(messages) == 7
    assert versions(messages) == {"first/item1": [1], **{f"u{number}/item1": [1, 2] for number in range(3)}}


def test_a_relay_finds_its_broker_again_by_itself(private: dict[str, str], rows: Rows, nats_server: NatsServer) -> None:
    """O2: while the broker is gone nothing is claimed and no attempt is spent."""
    enqueue(rows, "first/item1", 1)
    with _working(private, 20):
        until("the relay works", lambda: _row(rows, 1)["status"] == "PUBLISHED")
        nats_server.kill()
        enqueue(rows, "second/item1", 2)
        time.sleep(0.3)  # long enough for a relay that does not look to claim it
        assert _row(rows, 2) == {"status": "PENDING", "attempt_count": 0, "ready": True}
        nats_server.start()
        until("the relay works again", lambda: _row(rows, 2)["status"] == "PUBLISHED")
    assert _attempts(rows) == {0: 2}


def test_a_stream_that_was_deleted_is_made_again(environ: dict[str, str], rows: Rows, nats_url: str) -> None:
    """N3, O4: nobody listens: put off, and the topology is made sure of before the next claim."""
    enqueue(rows, "first/item1", 1)
    with _working(environ | {"ENTITLEMENT_OUTBOX_BACKOFF_BASE": "10ms"}, 20):
        until("the relay works", lambda: _row(rows, 1)["status"] == "PUBLISHED")
        asyncio.run(_delete_stream(nats_url, environ["ENTITLEMENT_NATS_STREAM"]))
        enqueue(rows, "second/item1", 2)
        until("the relay works again", lambda: _row(rows, 2)["status"] == "PUBLISHED")
    assert _row(rows, 2)["attempt_count"] == 1


def test_a_lease_is_renewed_while_publishing_is_slow(
    private: dict[str, str], rows: Rows, nats_server: NatsServer
) -> None:
    """O6: the broker takes longer than the lease; the lease grows, nobody else gets the event, it is published once."""
    slow = private | {"NATS_PUBLISH_TIMEOUT": "20s", "ENTITLEMENT_OUTBOX_LEASE": "1s"}
    enqueue(rows, "first/item1", 1)
    with _working(slow, 20) as result:
        until("the relay works", lambda: _row(rows, 1)["status"] == "PUBLISHED")
        with _frozen(nats_server):
            enqueue(rows, "second/item1", 2)
            until("it is claimed", lambda: _row(rows, 2)["status"] == "IN_FLIGHT")
            (claimed,) = rows.execute("SELECT locked_at FROM outbox_events WHERE aggregate_version = 2").fetchall()
            until(
                "the lease outlives its first length",
                lambda: _lease_until(rows) > claimed["locked_at"] + timedelta(seconds=1.5),
            )
        until("it is published", lambda: _row(rows, 2)["status"] == "PUBLISHED")
    assert (result["published"], result["leases_lost"], result["retried"]) == (2, 0, 0)
    assert len(stream(private)) == 2


def test_a_budget_that_ends_in_mid_work_leaves_no_lease(environ: dict[str, str], rows: Rows) -> None:
    """O7: what was not sent is given back as it was, and the next relay goes on in order."""
    with relay(environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "1000"}) as runtime:
        runtime.run(budget(5, until_idle=True))
        enqueue_many(rows, aggregates=1, each=1000)
        result = runtime.run(budget(0.1))
    assert 0 < result["published"] < 1000
    assert result["published"] + result["released"] == 1000
    assert _states(rows).keys() == {"PENDING", "PUBLISHED"}
    assert _attempts(rows) == {0: 1000}
    drain(environ)
    messages = stream(environ)
    assert len(messages) == 1000
    assert versions(messages) == {"u0/item1": list(range(1, 1001))}


def test_a_database_that_goes_away_costs_no_attempt(server: PostgresServer, environ: dict[str, str]) -> None:
    """O2: the relay waits for PostgreSQL within its budget, and stops if it may not wait."""
    environ = environ | {"DATABASE_URL": server.url()}
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("TRUNCATE outbox_events")
        enqueue(connection, "gone/item1", 1)
    with _working(environ, 20) as result:
        until("the first event is in the stream", lambda: _count(environ) == 1)
        server.stop()
        with pytest.raises(RetryableError):
            drain(environ)
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            enqueue(connection, "gone/item1", 2)
        until("the second event is in the stream", lambda: _count(environ) == 2)
    assert (result["published"], result["failed"], result["leases_lost"]) == (2, 0, 0)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        assert connection.execute("SELECT DISTINCT status, attempt_count FROM outbox_events").fetchall() == [
            ("PUBLISHED", 0)
        ]


@contextmanager
def _working(environ: dict[str, str], seconds: float, now: datetime | None = None) -> Iterator[Counter[str]]:
    """A relay that works beside the test, until the test is done with it; then, what it returned."""
    result: Counter[str] = Counter()
    done = threading.Event()

    def work() -> None:
        with relay(environ, now) as runtime:
            deadline = time.monotonic() + seconds
            ends = Budget(deadline, clock=lambda: deadline if done.is_set() else time.monotonic())
            result.update(runtime.run(ends))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield result
    finally:
        done.set()
        thread.join()


@contextmanager
def _frozen(server: NatsServer) -> Iterator[None]:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if server.is_alive():
            os.kill(server.pid, signal.SIGCONT)


async def _delete_stream(url: str, name: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().delete_stream(name)
    await client.close()


def _count(environ: dict[str, str]) -> int:
    try:
        return len(stream(environ))
    except NotFoundError:
        return 0


def _row(rows: Rows, version: int) -> dict[str, object]:
    found = rows.execute(
        "SELECT status, attempt_count, ready FROM outbox_events WHERE aggregate_version = %s", (version,)
    )
    (row,) = found.fetchall()
    return row


def _states(rows: Rows) -> dict[str, int]:
    found = rows.execute("SELECT status, count(*) AS n FROM outbox_events GROUP BY status")
    return {row["status"]: row["n"] for row in found}


def _attempts(rows: Rows) -> dict[int, int]:
    found = rows.execute("SELECT attempt_count, count(*) AS n FROM outbox_events GROUP BY attempt_count")
    return {row["attempt_count"]: row["n"] for row in found}


def _lease_until(rows: Rows) -> datetime:
    (row,) = rows.execute("SELECT lease_until FROM outbox_events WHERE status = 'IN_FLIGHT'").fetchall()
    lease_until: datetime = row["lease_until"]
    return lease_until
