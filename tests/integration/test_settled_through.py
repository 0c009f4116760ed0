"""W3: up to which time every change was SENT, or is an open dead letter."""

from __future__ import annotations

import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from grantwire.notifications.dead_letters import redrive
from grantwire.observability import metrics
from grantwire.operations.samples import Samples
from grantwire.settings import load
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.workers.schedule import ScheduleSettings
from infra.local.system.processes import wait_until
from tests.support.dead_letters import budget
from tests.support.operations import OpsClient
from tests.support.servers import newest_postgres
from tests.support.workers.relay_support import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.wiring.workers.runtime import WorkerRuntime
    from tests.integration.conftest import Rows
    from tests.support.client import Client

STATUS = "/v1/ops/status"
NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)


@pytest.fixture
def ops(database_url: str) -> Iterator[OpsClient]:
    """Caller of the operations API."""
    with OpsClient(database_url) as client:
        yield client


def settled(rows: Rows, *, cap: int = 10_000, grace: str = "0s", now: datetime | None = None) -> dict[str, Any]:
    """Return the result of the SQL function, with the time parsed."""
    query = "SELECT settled_through(%s, %s, %s) AS settled"
    ((found,),) = (row.values() for row in rows.execute(query, (cap, grace, now)).fetchall())
    return {**found, "through": datetime.fromisoformat(found["through"])}


def run(environ: dict[str, str], worker: type[WorkerRuntime]) -> None:
    """Run a worker until it has nothing to do."""
    runtime = worker.build(environ)  # type: ignore[attr-defined]
    runtime.run(budget())
    runtime.close()


def test_change_holds_it_back_at_each_stage_until_it_is_sent(
    environ: dict[str, str], client: Client, ops: OpsClient, rows: Rows
) -> None:
    """W3: by the time of the change, whenever a stage got it; status, sample and metric say the same."""
    changed_at = datetime.fromisoformat(client.grant("k").json["updated_at"])
    rows.execute("UPDATE outbox_events SET created_at = created_at - interval '1 hour'")  # it has waited
    payload = "jsonb_set(payload, '{occurred_at}', to_jsonb(rfc3339((payload->>'occurred_at')::timestamptz - %s)))"
    rows.execute(f"UPDATE outbox_events SET payload = {payload}", (timedelta(hours=1),))  # noqa: S608
    change = changed_at - timedelta(hours=1)
    for stage, worker in (("outbox", RelayRuntime), ("stream", BridgeRuntime), ("notifications", DeliveryRuntime)):
        found = ops.get(STATUS).json["settled"]
        assert found["held_back_by"] == stage
        assert timedelta(0) <= change - datetime.fromisoformat(found["through"]) < timedelta(seconds=5)
        assert 3600 <= found["age_seconds"] < 3720
        run(environ, worker)
    found = ops.get(STATUS).json["settled"]
    assert (found["held_back_by"], set(found["oldest"].values())) == (None, {None})
    assert datetime.fromisoformat(found["through"]) > changed_at
    assert Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {})).take_if_due()
    (sample,) = ops.get("/v1/ops/samples").json["samples"]
    assert sample["settled_through"] > found["through"]
    assert metrics.metric_set["SettledAge"]["Value"] == [sample["settled_age_seconds"]]


def test_running_transaction_bounds_it(rows: Rows, database_url: str) -> None:
    """W3: its changes are not visible yet, and have times after its start. A transaction that only reads does not."""
    with psycopg.connect(database_url) as writer, psycopg.connect(database_url) as reader:
        reader.execute("SELECT FROM entitlements")
        writer.execute("INSERT INTO entitlements VALUES ('u', 's', 'ACTIVE', 1, now())")
        ((started_at,),) = writer.execute("SELECT now()").fetchall()
        found = settled(rows)
        assert (found["through"], found["held_back_by"]) == (started_at, "transactions")
        with rows.transaction():  # the activity is read again in each call
            writer.commit()
            assert settled(rows)["held_back_by"] is None
            enqueue(writer, "u/item1", 1)
            assert settled(rows)["oldest"]["transactions"] is not None


def test_transaction_of_another_login_bounds_it(rows: Rows, database_url: str, owner_url: str) -> None:
    """W3: the owner of the schema is no superuser and sees every login with pg_read_all_stats.

    Without it, transactions of the own login still count.
    """
    owner = sql.Identifier(f"owner_{uuid.uuid4().hex}")
    function = sql.SQL("ALTER FUNCTION oldest_writing_transaction_of_all OWNER TO {}")

    def held_back_by(functions: psycopg.Connection) -> Any:
        ((found,),) = functions.execute("SELECT settled_through(100, '0s')").fetchall()
        functions.rollback()
        return found["held_back_by"]

    rows.execute(sql.SQL("CREATE ROLE {} NOSUPERUSER CREATEROLE IN ROLE grantwire_functions").format(owner))
    try:
        rows.execute(function.format(owner))
        with psycopg.connect(database_url) as functions, psycopg.connect(owner_url) as other_login:
            other_login.execute("LOCK TABLE entitlements IN ROW EXCLUSIVE MODE")
            assert held_back_by(functions) is None
            with psycopg.connect(database_url) as same_login:
                same_login.execute("LOCK TABLE entitlements IN ROW EXCLUSIVE MODE")
                assert held_back_by(functions) == "transactions"
                same_login.rollback()
            rows.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(owner))
            assert held_back_by(functions) == "transactions"
            other_login.rollback()
            assert held_back_by(functions) is None
    finally:
        rows.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(owner))
        rows.execute(sql.SQL("DROP ROLE {}").format(owner))


def test_change_that_commits_while_it_is_read_is_not_missed(rows: Rows, database_url: str, owner_url: str) -> None:
    """W3: after the statement has its snapshot, but before the running transactions are read."""
    with psycopg.connect(database_url) as writer, psycopg.connect(owner_url) as gate, ThreadPoolExecutor(1) as pool:
        enqueue(writer, "u/item1", 1)
        gate.execute("SELECT pg_advisory_xact_lock(1)")
        statement = (
            "SELECT settled_through(100, '0s') AS settled FROM (SELECT pg_advisory_lock(1) AS x OFFSET 0) AS gate"
            " WHERE gate.x IS NOT NULL"
        )
        reading = pool.submit(lambda: rows.execute(statement).fetchall())
        blocked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        assert wait_until(lambda: gate.execute(blocked).fetchall() == [(1,)], 60)
        writer.commit()
        gate.rollback()
        (row,) = reading.result(timeout=60)
        rows.execute("SELECT pg_advisory_unlock_all()")
    assert row["settled"]["held_back_by"] == "outbox"


def test_overdue_starts_and_ends_count(rows: Rows) -> None:
    """W3: the expiry worker has not recorded them. An end is due when the grace is over; recorded ones do not count."""
    rows.execute(
        """
        INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at,
                                  purchase_id, start_pending)
        VALUES ('u', 'started', 'ACTIVE', 1, %(t)s, %(t)s - interval '9 h', %(t)s + interval '9 h', 'p', false),
               ('u', 'ended', 'EXPIRED', 2, %(t)s, NULL, %(t)s - interval '9 h', 'p', false),
               ('u', 'starts later', 'ACTIVE', 1, %(t)s, %(t)s + interval '1 h', NULL, 'p', true),
               ('u', 'end is due', 'ACTIVE', 1, %(t)s, NULL, %(t)s - interval '3 h', 'p', false)
        """,
        {"t": NOON},
    )
    found = settled(rows, grace="1 hour", now=NOON)
    assert (found["through"], found["held_back_by"]) == (NOON - timedelta(hours=2), "times")
    assert settled(rows, grace="3 hours 1 second", now=NOON)["held_back_by"] is None
    rows.execute(
        "UPDATE entitlements SET starts_at = %s WHERE stock_keeping_unit = 'starts later'", (NOON - timedelta(hours=4),)
    )
    assert settled(rows, grace="1 hour", now=NOON)["through"] == NOON - timedelta(hours=4)


def test_events_behind_a_dead_letter_are_counted_apart(client: Client, ops: OpsClient, rows: Rows) -> None:
    """W3: a dead letter is settled while it is open. After a redrive, its event and those behind it count again."""
    client.grant("k1")
    client.revoke("k2")
    client.grant("k3")
    rows.execute("UPDATE outbox_events SET created_at = created_at - interval '1 day'")
    rows.execute("UPDATE outbox_events SET status = 'FAILED', ready = false WHERE aggregate_version = 1")
    status = ops.get(STATUS).json
    assert (status["settled"]["held_back_by"], status["outbox"]["parked"], status["outbox"]["failed"]) == (None, 2, 1)
    rows.execute("SELECT outbox_redrive(ARRAY[(SELECT event_id FROM outbox_events WHERE status = 'FAILED')])")
    status = ops.get(STATUS).json
    assert (status["settled"]["held_back_by"], status["outbox"]["parked"]) == ("outbox", 0)
    assert status["settled"]["age_seconds"] >= 86_400


@dataclass
class Event:
    """A row of the outbox, what happened to it, and whether it has arrived or is an open dead letter.

    A FORGED dead letter is an open one of another message that names the event. TOO_OLD is listed as lost.
    """

    aggregate: str
    version: int
    created_at: datetime
    status: str = "PUBLISHED"
    published_at: datetime | None = None
    republication: int | None = None
    arrived: bool = False
    dead_letter: str | None = None
    ready: bool = False
    settled: bool = False


def _random_outbox(chance: random.Random, mark: datetime) -> list[Event]:
    """Return aggregates with published, failed, parked and republished events, as the relay leaves them."""
    events: list[Event] = []
    for number in range(chance.randint(0, 12)):
        at = NOON - timedelta(seconds=chance.randint(60, 20_000))
        parked = False
        head = True
        is_open = False
        for version in range(1, chance.randint(1, 5) + 1):
            event = Event(f"a{number}", version, at)
            at += timedelta(seconds=chance.randint(1, 30))
            is_open = is_open or chance.random() < 0.3
            if not is_open:
                late = chance.choice([0, 1, 8, 12, 500, 5000])
                event.published_at = event.created_at + timedelta(seconds=late)
                event.arrived = chance.random() < 0.6
                states = [None, None, "OPEN", "REDRIVEN", "FORGED", *["TOO_OLD"] * (event.published_at <= mark)]
                event.dead_letter = None if event.arrived else chance.choice(states)
                event.settled = event.arrived or event.dead_letter in {"OPEN", "TOO_OLD"}
            else:
                event.status = "FAILED" if (head or events[-1].arrived) and chance.random() < 0.2 else "PENDING"
                parked = parked or event.status == "FAILED"
                if not parked and chance.random() < 0.4:
                    event.republication, event.arrived = 1, chance.random() < 0.7
                event.ready, head = head and not parked, False
                event.settled = parked or event.arrived
            events.append(event)
    return events


def _write(rows: Rows, events: list[Event], mark: datetime, chance: random.Random) -> None:
    rows.execute("TRUNCATE outbox_events, processed_events, notification_nats_dlq, outbox_unconfirmed")
    rows.execute("UPDATE outbox_confirmation SET mark = %s", (mark,))
    for number, event in enumerate(events):
        event_id = uuid.UUID(int=number + 1)
        rows.execute(
            "INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,"
            " created_at, published_at, republication, stream_sequence)"
            " VALUES (%s, 'EntitlementGranted', %s, %s, '{}', %s, %s, %s, %s, %s, %s)",
            (event_id, event.aggregate, event.version, event.status, event.ready, event.created_at, event.published_at,
             event.republication, number if event.published_at else None),
        )  # fmt: skip
        if event.arrived:
            rows.execute("INSERT INTO processed_events VALUES (%s)", (event_id,))
        if event.dead_letter and event.dead_letter != "TOO_OLD":
            is_open = event.dead_letter != "REDRIVEN"
            sequence = 1000 + number if event.dead_letter == "FORGED" else number
            rows.execute(
                "INSERT INTO notification_nats_dlq (dead_letter_id, stream, consumer, stream_seq, kind, deliveries,"
                " event_id, event_time, advised_at, status, redrive_id, closed_at) VALUES (%s, 'S', 'c', %s,"
                " 'MAX_DELIVERIES', 5, %s, %s, now(), %s, 'r', %s)",
                (event_id, sequence, event_id, event.created_at, "OPEN" if is_open else "REDRIVEN",
                 None if is_open else NOON),
            )  # fmt: skip
        published = event.published_at
        is_listed = event.dead_letter in {None, "FORGED", "TOO_OLD"}
        passed = published is not None and published <= mark and not event.arrived and is_listed
        if passed or (event.republication and (not event.arrived or chance.random() < 0.5)):
            state = "TOO_OLD" if event.dead_letter == "TOO_OLD" else "REPUBLISHED" if event.republication else "WAITING"
            rows.execute(
                "INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at) VALUES (%s, %s, %s, now())",
                (event_id, state, event.created_at),
            )


@newest_postgres
def test_it_is_exact_and_never_later_than_the_truth(rows: Rows) -> None:
    """W3: compared with the definition, in random states; where searches reach their limit it may be earlier."""
    stages = set()
    for seed in range(80):
        chance = random.Random(seed)  # noqa: S311 - a repeatable test
        mark = NOON - timedelta(seconds=chance.randint(0, 15_000))
        events = _random_outbox(chance, mark)
        with rows.pipeline():
            _write(rows, events, mark, chance)
        truth = min((event.created_at for event in events if not event.settled), default=NOON)
        found = settled(rows, now=NOON)
        assert found["through"] == truth, f"seed {seed}"
        stages.add(found["held_back_by"])
        rows.execute("TRUNCATE status_samples")
        for cap in (1, 2, 4):
            assert settled(rows, cap=cap, now=NOON)["through"] <= truth, f"seed {seed}, cap {cap}"
    assert stages == {None, "outbox", "stream"}


@newest_postgres
def test_late_event_with_a_forged_dead_letter_counts_behind_the_limit(rows: Rows) -> None:
    """W3, G1: it was published after those that are read, and long after its change."""
    minutes = [NOON - timedelta(minutes=number) for number in range(5)]
    events = [Event(f"a{at.minute}", 1, at, published_at=at, arrived=True) for at in minutes[2:]]
    events.append(Event("late", 1, NOON - timedelta(hours=1), published_at=minutes[1], dead_letter="FORGED"))
    _write(rows, events, NOON - timedelta(days=1), random.Random(0))  # noqa: S311 - no chance in it
    assert settled(rows, cap=2, now=NOON)["through"] == NOON - timedelta(hours=1)


def test_limit_does_not_make_a_fast_installation_old(rows: Rows) -> None:
    """W3: behind the limit, an event is at most ten seconds older than its publication, unless it was published late.

    Late events are read, too; if they are too many, the result does not pass the one of the last sample.
    """
    insert = (
        "INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,"
        " created_at, published_at) SELECT gen_random_uuid(), 'EntitlementGranted', 'a' || %(t)s || n, 1, '{}',"
        " 'PUBLISHED', false, %(t)s::timestamptz + n * interval '1 ms',"
        " %(t)s::timestamptz + %(late)s + (21 - n) * interval '1 ms' FROM generate_series(1, 20) n"
    )
    rows.execute(insert, {"t": NOON - timedelta(seconds=20), "late": timedelta(seconds=1)})
    rows.execute("INSERT INTO processed_events SELECT event_id FROM outbox_events")
    through = settled(rows, cap=10, now=NOON)["through"]
    assert timedelta(seconds=28) < NOON - through < timedelta(seconds=30)
    rows.execute(insert, {"t": NOON - timedelta(hours=1), "late": timedelta(hours=1)})
    sampled = NOON - timedelta(minutes=90)
    names = "outbox_pending, outbox_failed, oldest_pending_seconds, notifications_pending, dead_letters, published"
    rows.execute(
        f"INSERT INTO status_samples (sampled_at, settled_through, settled_age_seconds, {names}, processed, sent)"  # noqa: S608
        " VALUES (%s, %s, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
        (NOON, sampled),
    )
    assert settled(rows, cap=30, now=NOON)["through"] == NOON - timedelta(hours=1) + timedelta(milliseconds=1)
    assert settled(rows, cap=10, now=NOON)["through"] == sampled


def test_event_of_a_redriven_notification_counts_by_the_time_of_its_change(
    environ: dict[str, str], client: Client, rows: Rows
) -> None:
    """W3: the dead letter keeps the time, also after the sweep has deleted the notification."""
    client.grant("k")
    for worker in (RelayRuntime, BridgeRuntime):
        run(environ, worker)
    day = timedelta(days=1)
    rows.execute("UPDATE notifications SET occurred_at = occurred_at - %s", (day,))
    refused = {"NOTIFICATION_SENDER": "webhook", "NOTIFICATION_WEBHOOK_URL": "http://127.0.0.1:9/"}
    keys = {"NOTIFICATION_WEBHOOK_KEYS": "whsec_" + "A" * 43 + "=", "NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "1"}
    run({**environ, **refused, **keys}, DeliveryRuntime)
    assert settled(rows)["held_back_by"] is None
    rows.execute("DELETE FROM notifications")
    (letter,) = rows.execute("SELECT notification_id FROM notification_dlq").fetchall()
    with psycopg.connect(environ["DATABASE_URL"], autocommit=True) as connection:
        redrive(connection, [letter["notification_id"]])
    found = settled(rows)
    assert (found["held_back_by"], found["age_seconds"] >= day.total_seconds()) == ("notifications", True)
