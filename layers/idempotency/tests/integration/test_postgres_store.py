"""C1, C4: behaviour specific to the PostgreSQL store; the conformance suite covers the rest."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.retention.policies import POLICIES, delete_batch
from grantwire.retention.settings import RetentionSettings
from grantwire.settings import load
from grantwire_idempotency import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus, PostgresStore
from grantwire_idempotency._internal.stores import postgres_queries
from grantwire_idempotency.errors import ConfigError, LeaseLostError, RetryableError
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import LiteralString

    from grantwire_idempotency import CheckResult, Store
    from infra.local.servers.postgres import PostgresServer
    from layers.idempotency.tests.integration.harness import PostgresHarness
    from tests.support.fixtures import Rows

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
KEY = Key("billing:order-1", message_id="m-1", message_type="order.created")


def connect(url: str, **environ: str) -> Database:
    """Return a database connection like that of a function."""
    return Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url, **environ}))


@pytest.fixture
def database_url(postgres_harness: PostgresHarness) -> str:
    """Return the URL of the shared database with an empty table."""
    return postgres_harness.url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Return the connection of the store."""
    database = connect(database_url)
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> PostgresStore:
    """Return a store that uses the clock of the database."""
    return PostgresStore(database)


def store_at(database: Database, moment: datetime) -> PostgresStore:
    """Return a store with a fixed time."""
    return PostgresStore(database, clock=lambda: moment)


def claim_key(store: Store, key: Key = KEY, ttl: timedelta = MINUTE) -> Claim:
    """Claim the key and return the claim."""
    check = store.check(key, ttl)
    assert isinstance(check, Claim)
    return check


def fetch_columns(rows: Rows, *columns: str) -> tuple[Any, ...]:
    """Return columns of the only row."""
    (row,) = rows.execute("SELECT * FROM processed_messages").fetchall()
    return tuple(row[column] for column in columns)


def test_row_has_columns_of_document_000(database: Database, rows: Rows) -> None:
    """C1: key, message, status and times are readable in the table."""
    claim = claim_key(store_at(database, NOW))
    columns = ("idempotency_key", "message_id", "message_type", "created_at")
    assert fetch_columns(rows, *columns) == ("billing:order-1", "m-1", "order.created", NOW)
    states = ("status", "started_at", "completed_at", "error", "expires_at", "updated_at")
    assert fetch_columns(rows, *states) == ("processing", NOW, None, None, NOW + MINUTE, NOW)

    failed = NOW + timedelta(seconds=5)
    store_at(database, failed).store_failure(claim, "ValueError: no", HOUR)
    assert fetch_columns(rows, *states) == ("failed", NOW, None, "ValueError: no", failed + HOUR, failed)

    again = NOW + timedelta(seconds=10)
    claim = claim_key(store_at(database, again))
    assert fetch_columns(rows, *states) == ("processing", again, None, "ValueError: no", failed + HOUR, again)

    done = NOW + timedelta(seconds=20)
    store_at(database, done).store_result(claim, "[]", 24 * HOUR)
    assert fetch_columns(rows, *states) == ("completed", again, done, None, done + 24 * HOUR, done)
    assert fetch_columns(rows, *columns) == ("billing:order-1", "m-1", "order.created", NOW)
    assert fetch_columns(rows, "result", "claimed_by", "claimed_until", "failed_until") == ("[]", None, None, None)


def test_message_id_defaults_to_key(store: PostgresStore, rows: Rows) -> None:
    """C1: the column is never empty."""
    claim_key(store, Key("billing:order-1"))
    assert fetch_columns(rows, "message_id", "message_type") == ("billing:order-1", "")


def test_row_expires_with_its_last_live_entry(database: Database, rows: Rows) -> None:
    """R3: the sweep uses expires_at, so no claim, completion or failure may outlive it."""
    store = store_at(database, NOW)
    store.store_result(claim_key(store, Key("a", mark=1), HOUR), "one", 5 * HOUR)
    assert fetch_columns(rows, "expires_at") == (NOW + 5 * HOUR,)
    claim = claim_key(store, Key("a", mark=2), HOUR)
    assert fetch_columns(rows, "expires_at", "status", "completed_mark", "claimed_mark") == (
        NOW + 5 * HOUR,
        "processing",
        1,
        2,
    )
    store.store_failure(claim, "no", 3 * HOUR)
    assert fetch_columns(rows, "expires_at", "status", "error") == (NOW + 5 * HOUR, "completed", "no")
    claim = claim_key(store, Key("a", mark=2), 9 * HOUR)
    assert fetch_columns(rows, "expires_at") == (NOW + 9 * HOUR,)
    store.store_failure(claim, "no", 7 * HOUR)
    assert fetch_columns(rows, "expires_at") == (NOW + 7 * HOUR,)
    store.store_result(claim_key(store, Key("a", mark=2), 9 * HOUR), "two", 2 * HOUR)
    assert fetch_columns(rows, "expires_at") == (NOW + 2 * HOUR,)


def test_sweep_deletes_row_seven_days_after_expiry(database: Database, rows: Rows) -> None:
    """R3: live rows remain, regardless of their age."""
    store = store_at(database, NOW)
    store.store_result(claim_key(store, Key("a")), None, HOUR)
    store.store_result(claim_key(store, Key("b")), None, 30 * 24 * HOUR)
    (policy,) = [policy for policy in POLICIES if policy.table == "processed_messages"]
    week = timedelta(days=7)
    with database.session() as connection:
        deleted_early = delete_batch(connection, policy, load(RetentionSettings, {}), NOW + HOUR + week).deleted
        deleted_late = delete_batch(connection, policy, load(RetentionSettings, {}), NOW + HOUR + week + MINUTE).deleted
    assert (deleted_early, deleted_late) == (0, 1)
    assert fetch_columns(rows, "idempotency_key") == ("b",)


def test_clock_of_database_decides(store: PostgresStore, rows: Rows) -> None:
    """Two machines with different clocks agree."""
    claim_key(store, ttl=HOUR)
    (row,) = rows.execute(
        "SELECT abs(extract(epoch FROM claimed_until - now() - interval '1 h')) < 60 AS near FROM processed_messages"
    ).fetchall()
    assert row["near"]
    check = store.check(KEY, HOUR)
    assert isinstance(check, InProgress)
    assert timedelta(0) < check.free_in <= HOUR
    rows.execute("UPDATE processed_messages SET claimed_until = now(), expires_at = now()")
    store.store_result(claim_key(store), "done", HOUR)
    assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, "done")
    rows.execute("UPDATE processed_messages SET completed_until = now(), expires_at = now()")
    assert store.get_result(KEY) is None
    assert store.cleanup() == 1


def test_check_uses_current_time_not_transaction_start(rows: Rows) -> None:
    """A claim can expire during a long transaction."""
    check = "SELECT decision FROM processed_message_check('k', %s, NULL, 'm', '', interval '1 ms', NULL)"
    with rows.transaction():
        decisions = [rows.execute(check, (token,)).fetchall()[0]["decision"] for token in ("a", "a")]
        rows.execute("SELECT pg_sleep(0.002)")
        decisions += [rows.execute(check, ("b",)).fetchall()[0]["decision"]]
    assert decisions == ["NEW", "NEW", "NEW"]


def test_duplicate_writes_nothing(store: PostgresStore, rows: Rows) -> None:
    """Neither a row version nor a row lock: many duplicates only cause reads."""
    version = "SELECT xmin::text, xmax::text, ctid::text FROM processed_messages"
    claim = claim_key(store)
    before = rows.execute(version).fetchall()
    assert isinstance(store.check(KEY, MINUTE), InProgress)
    assert rows.execute(version).fetchall() == before
    store.store_result(claim, "done", HOUR)
    before = rows.execute(version).fetchall()
    assert isinstance(store.check(KEY, MINUTE), Duplicate)
    with pytest.raises(LeaseLostError):
        store.store_result(Claim(KEY), "other", HOUR)
    assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, "done")
    # A rejected result locks the row, which changes xmax, but writes no new row version.
    assert [row["ctid"] for row in rows.execute(version).fetchall()] == [before[0]["ctid"]]


class RepeatingDatabase(Database):
    """Runs every statement twice, as if the first response was lost after the commit."""

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run the statement twice."""
        super().fetch_row(statement, parameters)
        return super().fetch_row(statement, parameters)


def test_every_statement_is_safe_to_repeat(database_url: str) -> None:
    """If the connection breaks after the commit, the repeat has the same outcome."""
    database = RepeatingDatabase(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    store = PostgresStore(database)
    store.store_failure(claim_key(store), "no", HOUR)
    assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
    claim = claim_key(store)
    assert isinstance(store.check(KEY, MINUTE), InProgress)
    store.store_result(claim, "done", HOUR)
    assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    database.close()


def test_check_reconnects_after_killed_connection(database_url: str, rows: Rows) -> None:
    """The killed statement left nothing; the second one claims the key."""
    database = connect(database_url)
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE processed_messages IN ACCESS EXCLUSIVE MODE")
        checks, thread = _in_background(lambda: PostgresStore(database).check(KEY, MINUTE))
        session = _wait_until_blocked(rows)
        rows.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))
        assert _wait_until_blocked(rows, other_than=session) != session
    thread.join()
    database.close()
    assert [type(check) for check in checks] == [Claim]


@pytest.mark.parametrize(("end", "expected"), [("COMMIT", InProgress), ("ROLLBACK", Claim)])
@pytest.mark.parametrize("before", ["nothing", "an expired claim"])
def test_check_waits_for_concurrent_transaction(
    database_url: str, rows: Rows, end: str, expected: type, before: str
) -> None:
    """It decides on what was committed, also for the first claim, which has no row to lock."""
    database = connect(database_url)
    store = PostgresStore(database)
    if before == "an expired claim":
        claim_key(store)
        rows.execute("UPDATE processed_messages SET claimed_until = now(), expires_at = now()")
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("BEGIN")
        statement = "SELECT decision FROM processed_message_check(%s, 'other', NULL, 'm', '', interval '1 h', NULL)"
        assert other.execute(statement, (KEY.value,)).fetchall() == [("NEW",)]
        checks, thread = _in_background(lambda: store.check(KEY, MINUTE))
        _wait_until_blocked(rows)
        other.execute(end)
    thread.join()
    database.close()
    assert [type(check) for check in checks] == [expected]


def test_statement_timeout_limits_wait_for_key(database_url: str, rows: Rows) -> None:
    """The caller gets a retryable error."""
    database = connect(database_url, DATABASE_STATEMENT_TIMEOUT="100ms")
    store = PostgresStore(database)
    claim = claim_key(store)
    with rows.transaction():
        rows.execute("SELECT FROM processed_messages FOR UPDATE")
        with pytest.raises(RetryableError):
            store.store_result(claim, "done", HOUR)
    store.store_result(claim, "done", HOUR)
    database.close()


def test_cleanup_deletes_expired_rows_in_batches(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: the oldest first, including a row that expires now, and never a locked row."""
    monkeypatch.setattr(postgres_queries, "CLEANUP_BATCH", 3)
    store = store_at(database, NOW)
    for number in reversed(range(7)):
        store.store_result(claim_key(store, Key(str(number))), None, (number + 1) * HOUR)
    later = store_at(database, NOW + 6 * HOUR)
    with rows.transaction():
        rows.execute("SELECT FROM processed_messages WHERE idempotency_key = '0' FOR UPDATE")
        assert later.cleanup() == 3
    remaining = [row["idempotency_key"] for row in rows.execute("SELECT idempotency_key FROM processed_messages")]
    assert sorted(remaining) == ["0", "4", "5", "6"]
    assert [later.cleanup() for _ in range(2)] == [3, 0]
    assert fetch_columns(rows, "idempotency_key") == ("6",)


def test_concurrent_cleanups_delete_each_row_once(database_url: str, rows: Rows) -> None:
    """Even while keys of expired rows are claimed again."""
    rows.execute("""
        INSERT INTO processed_messages (idempotency_key, message_id, message_type, status, started_at, expires_at,
               failed_until)
        SELECT n::text, '', '', 'failed', now() - interval '2 h', now() - interval '1 h', now() - interval '1 h'
          FROM generate_series(1, 1500) n""")

    def work(number: int) -> int:
        database = connect(database_url)
        store = PostgresStore(database)
        try:
            if number == 0:
                return sum(isinstance(store.check(Key(str(n)), HOUR), Claim) for n in range(1, 200))
            return store.cleanup() + store.cleanup()
        finally:
            database.close()

    claimed, *deleted = run_concurrently(3, work)
    assert claimed == 199
    (remaining,) = rows.execute("SELECT count(*) AS n, count(claimed_by) AS live FROM processed_messages").fetchall()
    assert (remaining["n"], remaining["live"]) == (199, 199)
    assert 1500 - 199 <= sum(deleted) <= 1500


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_cleanup_uses_index(rows: Rows, plans: str) -> None:
    """Also with many rows that remain."""
    rows.execute("""
        INSERT INTO processed_messages (idempotency_key, message_id, message_type, status, started_at, expires_at)
        SELECT n::text, '', '', 'completed', now(), now() + interval '1 h' FROM generate_series(1, 5000) n""")
    rows.execute("ANALYZE processed_messages")
    rows.execute(f"SET plan_cache_mode = {plans}")
    query = postgres_queries.Queries(None).cleanup()
    statement = query.statement.replace("%(now)s", "$1").replace("%(limit)s", "$2")
    rows.execute(f"PREPARE batch (timestamptz, bigint) AS {statement}")
    plan = "\n".join(row["QUERY PLAN"] for row in rows.execute("EXPLAIN EXECUTE batch (now(), 1000)").fetchall())
    assert "Index Scan using processed_messages_expiry on" in plan
    assert "Seq Scan" not in plan


def test_stricter_isolation_level_is_rejected(rows: Rows) -> None:
    """An older snapshot would show a claimed key as free."""
    rows.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        rows.execute("SELECT processed_message_check('k', 't', NULL, 'm', '', interval '1 h', NULL)")


@pytest.mark.parametrize(
    "change",
    [
        "expires_at = expires_at - interval '1 s'",
        "claimed_by = NULL",
        "claimed_mark = -1",
        "completed_by = 'x'",
        "result = 'x'",
        "completed_mark = 1",
    ],
)
def test_constraints_reject_contradictory_row(store: PostgresStore, rows: Rows, change: str) -> None:
    """The columns of a claim and of a completion must be consistent, and expires_at must cover them."""
    claim_key(store)
    with pytest.raises(psycopg.errors.CheckViolation):
        rows.execute(f"UPDATE processed_messages SET {change}")  # noqa: S608


def test_store_recovers_after_server_restart(server: PostgresServer) -> None:
    """Every method raises RetryableError while the server is down; committed rows remain."""
    database = connect(server.url())
    store = PostgresStore(database)
    claim = claim_key(store, Key("away"), HOUR)
    server.kill()
    try:
        for method in _methods(store, claim):
            with pytest.raises(RetryableError, match="send the same request again"):
                method()
    finally:
        server.start()
    assert isinstance(store.check(Key("away"), MINUTE), InProgress)
    store.store_result(claim, "done", HOUR)
    assert store.check(Key("away"), MINUTE) == Duplicate(Key("away"), "done")
    database.close()


def test_missing_database_raises_config_error() -> None:
    """Creating the store validates its arguments."""
    with pytest.raises(
        ConfigError,
        match="PostgresStore requires a DSN, a psycopg Connection or a ConnectionPool of psycopg_pool, not a NoneType",
    ):
        PostgresStore(cast("Database", None))


def _methods(store: Store, claim: Claim) -> list[Callable[[], object]]:
    return [
        lambda: store.check(claim.key, MINUTE),
        lambda: store.check(Key(claim.key.value, mark=1), MINUTE),
        lambda: store.store_result(claim, "done", HOUR),
        lambda: store.store_failure(claim, "no", HOUR),
        lambda: store.get_result(claim.key),
        store.cleanup,
    ]


def _in_background(check: Callable[[], CheckResult]) -> tuple[list[CheckResult], threading.Thread]:
    checks: list[CheckResult] = []
    thread = threading.Thread(target=lambda: checks.append(check()))
    thread.start()
    return checks, thread


def _wait_until_blocked(rows: Rows, other_than: int | None = None) -> int:
    """Wait until a session of this database waits for a lock, and return its process id."""
    waiting = """
        SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid IS DISTINCT FROM %s"""
    deadline = time.monotonic() + 60
    while not (sessions := rows.execute(waiting, (other_than,)).fetchall()):
        assert time.monotonic() < deadline, "no session waits for a lock"
        time.sleep(0.005)
    return int(sessions[0]["pid"])


def test_delete_completed_selects_by_age(database: Database) -> None:
    """C4, document 001: live or not, but never a key on which a run works."""
    for hours, name in enumerate(("old", "busy", "dead", "young")):
        store = store_at(database, NOW + hours * HOUR)
        store.store_result(claim_key(store, Key(name, mark=1)), "done", 24 * HOUR)
    claim_key(store_at(database, NOW + 3 * HOUR), Key("busy", mark=2), 9 * HOUR)
    claim_key(store_at(database, NOW + 3 * HOUR), Key("dead", mark=2), MINUTE)
    store = store_at(database, NOW + 4 * HOUR)
    assert store.delete_completed(1.5 * HOUR) == 2
    states = [store.get_result(Key(name)) for name in ("old", "busy", "dead", "young")]
    assert [state and state.status for state in states] == [None, KeyStatus.IN_PROGRESS, None, KeyStatus.COMPLETED]
