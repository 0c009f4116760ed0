"""R1-R5, Q4: rows past their retention are deleted, exact to the microsecond, in bounded batches."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from functions.sweep_retention.handler import handler
from grantwire.database import Database, DatabaseSettings
from grantwire.errors import ConfigError, InternalError, RetryableError
from grantwire.observability import metrics
from grantwire.retention import POLICIES, RetentionSettings, Sweep
from grantwire.settings import load
from grantwire.wiring.lazy import LazyRuntime
from grantwire.wiring.workers.sweep_retention import SweepRuntime
from grantwire.workers.budget import Budget
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import budget
from tests.support.lock_timeouts import never_wait
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.retention import Policy
    from tests.integration.conftest import Rows

NOW = datetime(2031, 5, 10, 12, 0, 0, 0, tzinfo=UTC)
TICK = timedelta(microseconds=1)
DAY = timedelta(days=1)


@pytest.fixture
def sweep(owner_url: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that runs one sweep at `now` with these settings. Only the schema owner may pass another time."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url}))

    def run(until: Budget | None = None, now: datetime | None = NOW, **settings: str) -> dict[str, Any]:
        return run_worker(Sweep(database, load(RetentionSettings, settings), now), until or budget(60))

    yield run
    database.close()


@pytest.fixture(autouse=True)
def _all_events_are_confirmed(rows: Rows) -> None:
    rows.execute("UPDATE outbox_confirmation SET mark = '2100-01-01'")


# For each policy, a statement that inserts row number `n` with the time `at`.
INSERT = {
    "idempotency_keys": """
        INSERT INTO idempotency_keys VALUES ('c', 'r', %(n)s::text, 'h', 200, '', %(at)s - interval '1 day', %(at)s)""",
    "key_conflicts": """
        INSERT INTO key_conflicts (caller, route, key_hash, day, operation_id, last_at)
        VALUES ('c', 'r', lpad(%(n)s::text, 64, '0'), '2026-01-08', gen_random_uuid(), %(at)s)""",
    "outbox_published": """
        INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,
               published_at) VALUES (gen_random_uuid(), 't', %(n)s::text, 1, '{}', 'PUBLISHED', false, %(at)s)""",
    "outbox_discarded": """
        INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,
               discarded_at) VALUES (gen_random_uuid(), 't', %(n)s::text, 2, '{}', 'DISCARDED', false, %(at)s)""",
    "outbox_republications": """
        INSERT INTO outbox_republications VALUES (gen_random_uuid(), 1, 'LOST', NULL, 1, %(at)s)""",
    "stream_losses": """
        INSERT INTO stream_losses (cause, stream, detected_at, examine_after, examine_below, completed_at)
        VALUES ('CUT', 's', %(at)s, %(at)s, 1, %(at)s)""",
    "processed_events": """
        INSERT INTO processed_events VALUES (gen_random_uuid(), %(at)s)""",
    "notifications": """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
               status, next_retry_at, created_at)
        VALUES (gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u', 's', 1, '{}', 'FAILED', NULL,
               %(at)s)""",
    "notification_dlq": """
        INSERT INTO notification_dlq (notification_id, event_id, event_type, user_id, stock_keeping_unit, version,
               payload, attempt_count, status, closed_at)
        VALUES (gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u', 's', 1, '{}', 10, 'REDRIVEN',
               %(at)s)""",
    "notification_nats_dlq": """
        INSERT INTO notification_nats_dlq (dead_letter_id, stream, consumer, stream_seq, kind, deliveries, advised_at,
               status, closed_at)
        VALUES (gen_random_uuid(), 's', 'c', %(n)s, 'MSG_TERMINATED', 1, %(at)s, 'DISCARDED', %(at)s)""",
    "processed_messages": """
        INSERT INTO processed_messages (idempotency_key, message_id, message_type, status, started_at, expires_at)
        VALUES (%(n)s::text, 'm', 't', 'processing', %(at)s, %(at)s)""",
    "operator_commands": """
        INSERT INTO operator_commands
               (command_id, kind, arguments, actor, reason, source, status, finished_at)
        VALUES (gen_random_uuid(), 'read_model.verify', '{}', 'a', 'r', 's', 'DONE', %(at)s)""",
    "status_samples": """
        INSERT INTO status_samples VALUES (%(at)s, 0, 0, 0, NULL, 0, 0, 0, 0, 0, %(at)s, 0)""",
    "distributed_locks": """
        INSERT INTO distributed_locks VALUES (%(n)s::text, 'o', %(at)s - interval '1 hour', %(at)s)""",
}

# (policy, retention, whether a row whose age equals the retention is deleted)
THRESHOLDS = [
    ("idempotency_keys", timedelta(0), True),
    ("key_conflicts", 400 * DAY, False),
    ("outbox_published", DAY, False),
    ("outbox_discarded", DAY, False),
    ("outbox_republications", 30 * DAY, False),
    ("stream_losses", 400 * DAY, False),
    ("processed_events", 30 * DAY, False),
    ("notifications", 30 * DAY, False),
    ("notification_dlq", 30 * DAY, False),
    ("notification_nats_dlq", 30 * DAY, False),
    ("processed_messages", 7 * DAY, False),
    ("operator_commands", 90 * DAY, False),
    ("status_samples", timedelta(hours=25), False),
    ("distributed_locks", 7 * DAY, False),
]

# For each policy, its table and the column that holds the time of a row.
TIME_COLUMNS = {
    "idempotency_keys": ("idempotency_keys", "expires_at"),
    "key_conflicts": ("key_conflicts", "last_at"),
    "outbox_published": ("outbox_events", "published_at"),
    "outbox_discarded": ("outbox_events", "discarded_at"),
    "outbox_republications": ("outbox_republications", "put_back_at"),
    "stream_losses": ("stream_losses", "detected_at"),
    "processed_events": ("processed_events", "processed_at"),
    "notifications": ("notifications", "created_at"),
    "notification_dlq": ("notification_dlq", "closed_at"),
    "notification_nats_dlq": ("notification_nats_dlq", "closed_at"),
    "processed_messages": ("processed_messages", "expires_at"),
    "operator_commands": ("operator_commands", "finished_at"),
    "status_samples": ("status_samples", "sampled_at"),
    "distributed_locks": ("distributed_locks", "lease_until"),
}


def test_every_policy_is_tested() -> None:
    """No policy deletes rows without a test of its threshold."""
    assert [policy.name for policy in POLICIES] == [name for name, _, _ in THRESHOLDS] == list(TIME_COLUMNS)


@pytest.mark.parametrize(("name", "retention", "inclusive"), THRESHOLDS, ids=[name for name, _, _ in THRESHOLDS])
def test_retention_is_exact_to_the_microsecond(
    rows: Rows, sweep: Callable[..., dict[str, Any]], name: str, retention: timedelta, *, inclusive: bool
) -> None:
    """R1-R3, Q4: a younger row stays and an older one is deleted. A row exactly as old follows its policy."""
    threshold = NOW - retention
    for number, at in enumerate((threshold - TICK, threshold, threshold + TICK), start=1):
        rows.execute(INSERT[name], {"n": number, "at": at})
    result = sweep()
    assert result["deleted"] == {name: 2 if inclusive else 1}
    assert _count(rows, _policy(name).table) == (1 if inclusive else 2)
    assert sweep()["deleted"] == {}


def test_clock_of_the_database_decides(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """R1: in production the sweep passes no time."""
    rows.execute(INSERT["idempotency_keys"], {"n": 1, "at": datetime.now(UTC) - timedelta(seconds=5)})
    rows.execute(INSERT["idempotency_keys"], {"n": 2, "at": datetime.now(UTC) + timedelta(hours=1)})
    assert sweep(now=None)["deleted"] == {"idempotency_keys": 1}


def test_open_events_and_open_dead_letters_are_never_deleted(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """R1, Q4: at any age. Operator actions are never deleted either."""
    old = NOW - 3650 * DAY
    for version, status in enumerate(("PENDING", "IN_FLIGHT", "FAILED"), start=1):
        rows.execute(
            """
            INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,
                   created_at, locked_by, locked_at, lease_until)
            VALUES (gen_random_uuid(), 't', %(status)s, %(version)s, '{}', %(status)s, %(ready)s, %(old)s,
                   'w', %(old)s, %(old)s)""",
            {"status": status, "version": version, "ready": status != "FAILED", "old": old},
        )
    for name in ("notification_dlq", "notification_nats_dlq"):
        rows.execute(INSERT[name], {"n": 1, "at": old})
    rows.execute("UPDATE notification_dlq SET status = 'OPEN', closed_at = NULL")
    rows.execute("UPDATE notification_nats_dlq SET status = 'OPEN', closed_at = NULL")
    rows.execute(
        "INSERT INTO operator_actions"
        " VALUES (%s, 0, 'a', 'r', 's', 'redrive', 'outbox', '{}', false, NULL, '{}', 0, %s)",
        (uuid.uuid4(), old),
    )
    assert sweep()["deleted"] == {}


def test_unfinished_events_are_kept_and_counted(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """W2: those that the mark has not passed, listed ones, and those of a redriven dead letter that did not arrive."""
    old = NOW - 500 * DAY
    for number in range(1, 8):
        rows.execute(INSERT["outbox_published"], {"n": number, "at": old + number * TICK})
    ids = {row["aggregate_key"]: row["event_id"] for row in rows.execute("SELECT * FROM outbox_events")}
    rows.execute("UPDATE outbox_confirmation SET mark = %s", (old + 6 * TICK,))
    listed = "INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at) VALUES (%s, %s, now(), now())"
    rows.execute(listed, (ids["1"], "WAITING"))
    rows.execute(listed, (ids["2"], "TOO_OLD"))
    for number, event_id, arrived in ((1, ids["3"], False), (2, ids["4"], True)):
        rows.execute(
            """
            INSERT INTO notification_nats_dlq (dead_letter_id, stream, consumer, stream_seq, kind, deliveries,
                   advised_at, status, closed_at, event_id, redrive_id)
            VALUES (gen_random_uuid(), 's', 'c', %s, 'MSG_TERMINATED', 1, now(), 'REDRIVEN', %s, %s, 'r')""",
            (number, NOW, event_id),
        )
        if arrived:
            rows.execute("INSERT INTO processed_events VALUES (%s, %s)", (event_id, NOW))
    metrics.clear_metrics()
    result = sweep(RETENTION_BATCH_SIZE="2")
    assert (result["deleted"], result["kept"]) == ({"outbox_published": 3}, 3)
    assert metrics.metric_set["EventsKept"]["Value"] == [3]
    assert {row["aggregate_key"] for row in rows.execute("SELECT * FROM outbox_events")} == {"1", "2", "3", "7"}


@pytest.mark.parametrize("kept", ["beyond the mark", "listed"])
def test_batch_is_bounded_although_the_oldest_events_are_unfinished(
    rows: Rows, sweep: Callable[..., dict[str, Any]], kept: str
) -> None:
    """W2: no statement reads more rows of the outbox than a few batches, and the finished ones behind are deleted."""
    rows.execute(
        """
        INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,
               published_at)
        SELECT gen_random_uuid(), 't', n, 1, '{}', 'PUBLISHED', false, %s + n * interval '1 microsecond'
          FROM generate_series(1, 20000) AS n""",
        (NOW - 3 * DAY,),
    )
    if kept == "listed":
        rows.execute("""
            INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at)
            SELECT event_id, 'TOO_OLD', now(), now() FROM outbox_events""")
        rows.execute(INSERT["outbox_published"], {"n": 30_000, "at": NOW - 2 * DAY})
    else:
        rows.execute("UPDATE outbox_confirmation SET mark = '2000-01-01'")
    rows.execute("VACUUM ANALYZE outbox_events, outbox_unconfirmed")
    policy = _policy("outbox_published")
    parameters = {"now": NOW, "retention": DAY, "limit": 100, "after_time": None, "after_key": None}
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    with psycopg.connect(rows.info.dsn, password=rows.info.password) as connection:
        statement = query + policy.delete_statement.as_string()
        (plan,) = connection.execute(statement, parameters).fetchone()  # type: ignore[misc]
        connection.rollback()
    buffers = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
    assert buffers < 2000
    assert sweep()["deleted"] == ({"outbox_published": 1} if kept == "listed" else {})


@pytest.mark.parametrize("status", ["PENDING", "PROCESSING"])
def test_unfinished_notification_past_its_retention_stays_and_is_reported(
    rows: Rows, sweep: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], status: str
) -> None:
    """R2: this is an anomaly, reported by an error in the log and a metric."""
    rows.execute(INSERT["notifications"], {"n": 1, "at": NOW - 30 * DAY - TICK})
    locked = "'w', now(), now()" if status == "PROCESSING" else "NULL, NULL, NULL"
    rows.execute(
        f"UPDATE notifications SET (status, next_retry_at, locked_by, locked_at, lease_until)"  # noqa: S608
        f" = ('{status}', now(), {locked})"
    )
    metrics.clear_metrics()
    result = sweep()
    assert (result["forgotten"], result["deleted"], _count(rows, "notifications")) == (1, {}, 1)
    assert "NotificationsForgotten" in metrics.metric_set
    assert '"level":"ERROR"' in capsys.readouterr().out
    assert sweep(now=NOW - TICK)["forgotten"] == 0


def test_retention_of_notifications_can_be_disabled(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """R5: the other policies still run. The number of days changes the threshold."""
    for insert in INSERT.values():
        rows.execute(insert, {"n": 1, "at": NOW - 500 * DAY})
    result = sweep(NOTIFICATION_RETENTION_ENABLED="false")
    with_settings = {"processed_events", "notifications", "notification_dlq", "notification_nats_dlq"}
    assert set(result["deleted"]) == INSERT.keys() - with_settings
    longer = {"NOTIFICATION_RETENTION_RETENTION_DAYS": "600", "NOTIFICATION_DEAD_LETTERS_RETENTION": "600d"}
    assert sweep(**longer)["deleted"] == {}
    assert len(sweep()["deleted"]) == 4


def test_retention_must_be_longer_than_that_of_the_stream() -> None:
    """N2: the inbox must remember every event that the stream can still deliver."""
    with pytest.raises(ConfigError, match="must be longer than ENTITLEMENT_NATS_MAX_AGE"):
        load(RetentionSettings, {"NOTIFICATION_RETENTION_RETENTION_DAYS": "14"})


def test_large_backlog_is_deleted_in_bounded_batches(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """R4: each statement deletes at most one batch, and each batch is a transaction of its own."""
    _insert_expired_keys(rows, 100_000)
    rows.execute("CREATE TABLE deletions (rows bigint, transaction xid8 DEFAULT pg_current_xact_id())")
    rows.execute("""
        CREATE FUNCTION record_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO deletions (rows) SELECT count(*) FROM deleted_rows; RETURN NULL; END $$""")
    rows.execute("""
        CREATE TRIGGER record_deletion AFTER DELETE ON idempotency_keys REFERENCING OLD TABLE AS deleted_rows
           FOR EACH STATEMENT EXECUTE FUNCTION record_deletion()""")
    result = sweep(RETENTION_BATCH_SIZE="10000")
    assert (result["deleted"], result["batches"]) == ({"idempotency_keys": 100_000}, {"idempotency_keys": 10})
    assert result["complete"]
    (totals,) = rows.execute(
        "SELECT max(rows) AS most, sum(rows) AS total, count(DISTINCT transaction) AS transactions FROM deletions"
    ).fetchall()
    assert totals == {"most": 10_000, "total": 100_000, "transactions": 11}  # the last one deletes nothing
    assert _count(rows, "idempotency_keys") == 0


def test_next_sweep_continues_when_the_budget_ends(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """R4: a sweep ends between batches. A backlog of one policy does not delay the others."""
    _insert_expired_keys(rows, 1000)
    rows.execute(INSERT["processed_messages"], {"n": 1, "at": NOW - 8 * DAY})
    ticks = iter(range(1000))
    # Enough for the seven checks, each policy once and two more batches. The loop reads the clock twice for each task.
    short = Budget(2 * (7 + len(POLICIES) + 2), clock=lambda: float(next(ticks)))
    first = sweep(short, RETENTION_BATCH_SIZE="100")
    assert first["complete"] is False
    assert first["deleted"] == {"idempotency_keys": 300, "processed_messages": 1}
    assert sweep(RETENTION_BATCH_SIZE="100")["deleted"] == {"idempotency_keys": 700}


def test_concurrent_sweeps_share_the_work(owner_url: str, rows: Rows) -> None:
    """R4: neither waits for the other, and each row is deleted once."""
    _insert_expired_keys(rows, 20_000)

    def run(_: int) -> int:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url}))
        try:
            settings = load(RetentionSettings, {"RETENTION_BATCH_SIZE": "500"})
            return int(run_worker(Sweep(database, settings, NOW), budget(60))["deleted"].get("idempotency_keys", 0))
        finally:
            database.close()

    assert sum(run_concurrently(2, run)) + _count(rows, "idempotency_keys") == 20_000
    run(0)
    assert _count(rows, "idempotency_keys") == 0


@pytest.mark.parametrize("name", TIME_COLUMNS)
def test_each_batch_is_bounded_and_deletes_the_oldest_rows_first(
    rows: Rows, sweep: Callable[..., dict[str, Any]], name: str
) -> None:
    """R4, V1: for every policy."""
    table, column = TIME_COLUMNS[name]
    times = [NOW - 500 * DAY + number * TICK for number in range(5)]
    for number in (3, 1, 4, 0, 2):
        rows.execute(INSERT[name], {"n": number + 1, "at": times[number]})
    rows.execute("CREATE TABLE batches (number bigserial, times timestamptz[])")
    rows.execute(f"""
        CREATE FUNCTION record_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO batches (times)
          SELECT array_agg({column} ORDER BY {column}) FROM deleted_rows HAVING count(*) > 0;
          RETURN NULL; END $$""")  # noqa: S608 - a name from this file
    rows.execute(f"""
        CREATE TRIGGER record_deletion AFTER DELETE ON {table} REFERENCING OLD TABLE AS deleted_rows
           FOR EACH STATEMENT EXECUTE FUNCTION record_deletion()""")
    result = sweep(RETENTION_BATCH_SIZE="2")
    assert (result["deleted"], result["complete"]) == ({name: 5}, True)
    batches = [row["times"] for row in rows.execute("SELECT times FROM batches ORDER BY number")]
    assert batches == [times[:2], times[2:4], times[4:]]


@pytest.mark.parametrize("name", TIME_COLUMNS)
def test_locked_rows_are_skipped(owner_url: str, rows: Rows, sweep: Callable[..., dict[str, Any]], name: str) -> None:
    """R4, V1: for every policy. A sweep that waited for the row would fail with a lock timeout."""
    never_wait(rows)
    table, column = TIME_COLUMNS[name]
    for number in range(3):
        rows.execute(INSERT[name], {"n": number + 1, "at": NOW - 500 * DAY + number * TICK})
    oldest = f"SELECT FROM {table} WHERE {column} = %s FOR UPDATE"
    with psycopg.connect(owner_url) as other:
        assert other.execute(oldest, (NOW - 500 * DAY,)).rowcount == 1
        assert sweep()["deleted"] == {name: 2}
        assert _count(rows, table) == 1
    assert sweep()["deleted"] == {name: 1}


def test_failed_task_does_not_stop_the_others(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """The failure is raised at the end of the run."""
    for insert in INSERT.values():
        rows.execute(insert, {"n": 1, "at": NOW - 500 * DAY})
    rows.execute("CREATE TABLE child (id uuid REFERENCES processed_events)")
    rows.execute("INSERT INTO child SELECT event_id FROM processed_events")
    with pytest.raises(InternalError, match="child"):
        sweep()
    tables = {policy.table for policy in POLICIES} - {"processed_events"}
    assert {table: _count(rows, table) for table in tables} == dict.fromkeys(tables, 0)


def test_unavailable_database_raises_one_error() -> None:
    """The sweep does not try each policy."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": "postgresql://127.0.0.1:1/x"}))
    with pytest.raises(RetryableError):
        run_worker(Sweep(database, load(RetentionSettings, {})), budget())


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("policy", POLICIES, ids=[policy.name for policy in POLICIES])
def test_batch_reads_the_index_of_its_policy(rows: Rows, policy: Policy, plans: str) -> None:
    """R4: also among many rows that stay, and with a generic plan."""
    _insert_rows(rows, policy.name, 5000)
    rows.execute(f"ANALYZE {policy.table}")
    rows.execute(f"SET plan_cache_mode = {plans}")
    statement = policy.delete_statement.as_string()
    for number, name in enumerate(("now", "retention", "limit", "after_time", "after_key"), start=1):
        statement = statement.replace(f"%({name})s", f"${number}")
    rows.execute(f"PREPARE batch (timestamptz, interval, bigint, timestamptz, uuid) AS {statement}")
    days = policy.retention(load(RetentionSettings, {})).days
    plan = rows.execute(f"EXPLAIN EXECUTE batch ('{NOW}', '{days} days', 500, NULL, NULL)").fetchall()
    text = "\n".join(row["QUERY PLAN"] for row in plan)
    assert f"Index Scan using {policy.index} on" in text or f"Bitmap Index Scan on {policy.index}" in text
    assert f"Seq Scan on {policy.table}" not in text


def test_stuck_event_is_promoted_and_reported(
    rows: Rows, sweep: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """O8: this never happens unless there is a bug. An event behind a FAILED one is not stuck."""
    rows.execute("""
        INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready)
        SELECT gen_random_uuid(), 't', key, version, '{}', status, ready
          FROM (VALUES ('stuck', 1, 'PENDING', false), ('stuck', 2, 'PENDING', false), ('parked', 1, 'FAILED', false),
                       ('parked', 2, 'PENDING', false), ('fine', 1, 'PENDING', true), ('fine', 2, 'PENDING', false))
               AS e (key, version, status, ready)""")
    metrics.clear_metrics()
    assert sweep()["stuck"] == 1
    assert "OutboxStuck" in metrics.metric_set
    assert '"level":"ERROR"' in capsys.readouterr().out
    ready = rows.execute("SELECT aggregate_key, aggregate_version FROM outbox_events WHERE ready ORDER BY 1").fetchall()
    assert [tuple(row.values()) for row in ready] == [("fine", 1), ("stuck", 1)]
    assert sweep()["stuck"] == 0


def test_function_sweeps(database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: with its example event."""
    runtime = SweepRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url})
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: runtime))
    rows.execute(INSERT["idempotency_keys"], {"n": 1, "at": datetime.now(UTC) - DAY})
    event = json.loads((ROOT / "infra" / "events" / "sweep_retention.json").read_text())
    try:
        result = handler(event, None)
    finally:
        runtime.close()
    assert (result["deleted"], result["complete"]) == ({"idempotency_keys": 1}, True)


def _policy(name: str) -> Policy:
    return next(policy for policy in POLICIES if policy.name == name)


def _count(rows: Rows, table: str) -> int:
    (row,) = rows.execute(f"SELECT count(*) AS n FROM {table}").fetchall()  # noqa: S608
    return int(row["n"])


def _insert_expired_keys(rows: Rows, count: int) -> None:
    rows.execute(
        """
        INSERT INTO idempotency_keys
        SELECT 'c', 'r', n::text, 'h', 200, '', %(now)s - interval '2 days', %(now)s - n * interval '1 ms'
          FROM generate_series(1, %(count)s) n""",
        {"now": NOW, "count": count},
    )


def _insert_rows(rows: Rows, name: str, count: int) -> None:
    """Insert rows of which one in ten is past its retention."""
    with rows.cursor() as cursor:
        cursor.executemany(
            INSERT[name],
            [{"n": n, "at": NOW - (40 * DAY if n % 10 == 0 else timedelta(0)) + n * TICK} for n in range(1, count + 1)],
        )
