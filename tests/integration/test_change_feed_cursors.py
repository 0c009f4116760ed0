"""K9: a cursor of another history of the database, or from before changes that were dropped, is refused with 410."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from grantwire.feed.cursor import FeedCursor, Position, SnapshotToken
from infra.local.servers.postgres import UNSAFE, PostgresServer
from infra.local.system.memory import in_memory
from tests.support.client import Client
from tests.support.feed import FeedClient
from tests.support.migrations import migrate
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Response
    from tests.support.servers import Databases

GONE = (410, "GONE")


@pytest.fixture
def feed(database_url: str) -> Iterator[FeedClient]:
    """A consumer of the feed."""
    with FeedClient(database_url) as feed:
        yield feed


def outcome(response: Response) -> tuple[int, str | None]:
    """Return the status and the error code."""
    return response.status, response.code


def read_cursors(feed: FeedClient, client: Client) -> tuple[str, str, str]:
    """Return a cursor in the middle of the feed, one at its end, and a page token of the snapshot."""
    for number in range(3):
        client.grant(str(uuid.uuid4()), user_id=f"u{number}-{uuid.uuid4()}")
    feed.follow(None, 3)
    middle = feed.changes(limit="1").json["next_after"]
    end = feed.changes(limit="1000").json["next_after"]
    return middle, end, feed.snapshot(limit="1").json["next_after"]


def assert_all_gone(feed: FeedClient, cursors: tuple[str, str, str]) -> None:
    """Each cursor is refused, and the message says how to continue, which works."""
    middle, end, token = cursors
    for response in (feed.changes(middle), feed.changes(end), feed.changes(end, wait="20"), feed.snapshot(token)):
        assert outcome(response) == GONE
        assert "restored or replaced" in response.json["message"]
        assert "read GET /v1/snapshot and continue from its changes_after" in response.json["message"]
    _, changes_after = feed.read_snapshot(limit=1)
    assert feed.changes(changes_after).status == 200


def assert_all_valid(feed: FeedClient, cursors: tuple[str, str, str]) -> None:
    """No cursor is refused."""
    middle, end, token = cursors
    assert [feed.changes(middle).status, feed.changes(end).status, feed.snapshot(token).status] == [200, 200, 200]


def test_renewed_installation_refuses_old_cursors(feed: FeedClient, client: Client, rows: Rows) -> None:
    """K9: for a restore that cannot be detected, an operator renews the installation."""
    cursors = read_cursors(feed, client)
    assert_all_valid(feed, cursors)
    rows.execute("SELECT installation_renew()")
    assert_all_gone(feed, cursors)


@contextmanager
def _second_database(server: PostgresServer) -> Iterator[str]:
    name = f"restored_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield server.url(name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _copy(server: PostgresServer, source: str, target: str) -> None:
    """Restore a dump of one database to another, whose tables it replaces."""
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    programs = server.installation.binaries
    environment = {"PATH": os.environ["PATH"]}
    dump = subprocess.run([programs / "pg_dump", source], capture_output=True, check=True, env=environment, timeout=60)
    arguments = ["--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", target]
    restore = subprocess.run(
        [programs / "psql", *arguments],
        input=dump.stdout,
        capture_output=True,
        check=False,
        env=environment,
        timeout=60,
    )
    assert restore.returncode == 0, restore.stderr.decode()


def test_restored_dump_refuses_old_cursors(server: PostgresServer) -> None:
    """K9: in another database; cursors of the first one stay valid there."""
    with Client(server.url()) as client, FeedClient(server.url()) as feed, _second_database(server) as url:
        cursors = read_cursors(feed, client)
        _copy(server, server.url(), url)
        with FeedClient(url) as restored:
            assert_all_gone(restored, cursors)
            assert restored.read_snapshot()[0] == feed.read_snapshot()[0]
        assert_all_valid(feed, cursors)


def test_copy_of_the_database_refuses_old_cursors(databases: Databases, feed: FeedClient, client: Client) -> None:
    """K9: a copy of all files in the same cluster, where only the database is another one."""
    cursors = read_cursors(feed, client)
    copy = databases.migrated()  # of the same template as the first one
    try:
        with FeedClient(copy) as other, Client(copy) as other_client:
            read_cursors(other, other_client)
            assert_all_gone(other, cursors)
    finally:
        databases.drop(copy)


def test_dump_that_replaces_the_tables_refuses_old_cursors(server: PostgresServer) -> None:
    """K9: in the same database, where only the table of the audit is another one."""
    with _second_database(server) as url, _second_database(server) as backup:
        migrate(url)
        with Client(url) as client, FeedClient(url) as feed:
            cursors = read_cursors(feed, client)
            _copy(server, url, backup)
            client.database.close()
            feed.database.close()
            _copy(server, backup, url)
            assert_all_gone(feed, cursors)


def test_recovery_to_an_earlier_time_refuses_old_cursors() -> None:
    """K9: a recovered cluster has another timeline, also before its first checkpoint. A restart does not change it."""
    server = PostgresServer(in_memory(STATE) / "timeline", settings=UNSAFE | {"checkpoint_timeout": "1h"})
    try:
        server.start()
        migrate(server.url())
        with Client(server.url()) as client, FeedClient(server.url()) as feed:
            cursors = read_cursors(feed, client)
        server.stop()
        server.start()
        with FeedClient(server.url()) as feed:
            assert_all_valid(feed, cursors)
        server.stop()
        data = server.folder / "data"
        standby = data / "standby.signal"
        standby.touch()
        os.chown(standby, data.stat().st_uid, data.stat().st_gid)
        server.start()
        with _without_checkpoints(server), FeedClient(server.url()) as feed:
            with psycopg.connect(server.url(), autocommit=True) as connection:
                assert connection.execute("SELECT pg_promote()").fetchall() == [(True,)]
            assert_all_gone(feed, cursors)
    finally:
        server.destroy()


@contextmanager
def _without_checkpoints(server: PostgresServer) -> Iterator[None]:
    """Stop the process that makes checkpoints: until the first one, the control file has the old timeline."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        ((checkpointer,),) = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
        ).fetchall()
    os.kill(checkpointer, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(checkpointer, signal.SIGCONT)


def test_transaction_id_that_was_not_assigned_yet_is_refused(feed: FeedClient, client: Client, rows: Rows) -> None:
    """K9: a copy of the storage from an earlier time has the same identity, but lower ids."""
    _, end, token = read_cursors(feed, client)
    cursor = FeedCursor.decode(end)
    for transaction_id in (_first_unused(rows) + 1000, 2**64 - 1):
        ahead = cursor._replace(position=cursor.position._replace(transaction_id=transaction_id))
        assert outcome(feed.changes(ahead.encode())) == GONE
        other = SnapshotToken.decode(token)._replace(visible_before=transaction_id)
        assert outcome(feed.snapshot(other.encode())) == GONE
    assert feed.changes(end).status == 200


def test_first_unused_transaction_id_is_refused(feed: FeedClient, rows: Rows) -> None:
    """K9: the end of the feed is below it, also while no transaction runs."""
    cursor = FeedCursor.decode(feed.changes().json["next_after"])
    for _ in range(20):
        unused = _first_unused(rows)
        assert cursor.position.transaction_id < unused
        response = feed.changes(FeedCursor(cursor.installation, Position.before(unused + 1)).encode())
        if _first_unused(rows) == unused:  # no other process of PostgreSQL took it meanwhile
            assert outcome(response) == GONE
            return
    pytest.fail("the cluster is never idle")


def _first_unused(rows: Rows) -> int:
    (row,) = rows.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS id").fetchall()
    return int(row["id"])


def _insert(rows: Rows, user_id: str, month: str) -> None:
    """Insert an applied change into a month, in a transaction of its own."""
    rows.execute(
        """INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                                          version, status, changed_at, occurred_at)
           SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', %s, 's', '{}', 1, 'ACTIVE', time, time
             FROM CAST(%s AS timestamptz) AS time""",
        (user_id, f"{month}-15"),
    )


def _drop_oldest(rows: Rows) -> str:
    (row,) = rows.execute("SELECT entitlement_audit_drop_oldest(1) AS name").fetchall()
    return str(row["name"])


def test_cursor_before_dropped_changes_is_refused(feed: FeedClient, rows: Rows) -> None:
    """K9: exactly those cursors after which a change was dropped; without a cursor the feed begins later.

    The order is that of the transactions: a change of January that was made last is dropped with January.
    """
    rows.execute("SELECT entitlement_audit_ensure_partitions(2, '2020-01-15')")
    for user_id, month in (("first", "2020-01"), ("second", "2020-02"), ("third", "2020-01"), ("fourth", "2020-03")):
        _insert(rows, user_id, month)
    feed.follow(None, 4)
    cursors: list[str] = []
    for _ in range(4):
        cursors.append(feed.changes(cursors[-1] if cursors else None, limit="1").json["next_after"])
    assert _drop_oldest(rows) == "entitlement_audit_y2020m01"
    for cursor in cursors[:2]:
        response = feed.changes(cursor)
        assert outcome(response) == GONE
        assert "no longer kept" in response.json["message"]
    assert [change["user_id"] for change in feed.changes(cursors[2]).json["changes"]] == ["fourth"]
    assert [change["user_id"] for change in feed.changes().json["changes"]] == ["second", "fourth"]
    assert _drop_oldest(rows) == "entitlement_audit_y2020m02"
    assert [feed.changes(cursor).status for cursor in cursors] == [410, 410, 200, 200]
    assert [change["user_id"] for change in feed.changes().json["changes"]] == ["fourth"]


def test_month_without_changes_can_be_dropped(feed: FeedClient, rows: Rows) -> None:
    """K9: an empty month, and one with refusals only, make no cursor invalid."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(1, '2020-01-15')")
    rows.execute(
        """INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                                          occurred_at)
           VALUES (gen_random_uuid(), 'c', 'GRANT', 'ENTITLEMENT_STATE_CONFLICT', 'u', 's', '{}', '2020-02-15')"""
    )
    cursor = feed.changes().json["next_after"]
    _insert(rows, "later", "2030-01")
    assert [_drop_oldest(rows), _drop_oldest(rows)] == ["entitlement_audit_y2020m01", "entitlement_audit_y2020m02"]
    changes, _ = feed.follow(cursor, 1)
    assert [change["user_id"] for change in changes] == ["later"]


def test_page_that_waited_for_a_drop_is_refused(feed: FeedClient, rows: Rows, owner_url: str) -> None:
    """K9: the statement began before the drop was committed, so its first snapshot does not show the drop."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(0, '2020-01-15')")
    cursor = feed.changes().json["next_after"]
    _insert(rows, "dropped", "2020-01")
    feed.follow(cursor, 1)
    with psycopg.connect(owner_url, row_factory=dict_row) as dropper:
        assert _drop_oldest(dropper) == "entitlement_audit_y2020m01"
        with _thread(lambda: outcome(feed.changes(cursor))) as result:
            _wait_until_blocked(rows, dropper.info.backend_pid)
            dropper.commit()
    assert result == [GONE]


@contextmanager
def _thread(work: Any) -> Iterator[list[Any]]:
    """Run work in a thread during the block; its result is in the list afterwards."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    yield results
    thread.join(timeout=30)


def _wait_until_blocked(rows: Rows, pid: int) -> None:
    """Wait until a session waits for a lock of this one."""
    for _ in range(600):
        if rows.execute("SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", (pid,)).fetchall():
            return
        rows.execute("SELECT pg_sleep(0.01)")
    pytest.fail("no session waits")


def test_dropped_changes_of_another_history_are_ignored(feed: FeedClient, rows: Rows) -> None:
    """K9: a restored dump has the position of a month that was dropped before, in ids of another cluster."""
    rows.execute(
        """UPDATE installation SET dropped_in = 'another', dropped_transaction_id = '9000000000000000000',
                                   dropped_occurred_at = now(), dropped_operation_id = gen_random_uuid()"""
    )
    assert feed.changes(feed.changes().json["next_after"]).status == 200
    rows.execute("SELECT entitlement_audit_ensure_partitions(0, '2020-01-15')")
    cursor = feed.changes().json["next_after"]
    _insert(rows, "dropped", "2020-01")
    feed.follow(cursor, 1)
    _drop_oldest(rows)
    assert outcome(feed.changes(cursor)) == GONE


def test_functions_cannot_change_the_installation(feed: FeedClient, database_url: str) -> None:
    """K9, A1: only the schema owner can make cursors invalid, or read more than the id."""
    del feed
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in (
            "SELECT installation_renew()",
            "UPDATE installation SET installation_id = gen_random_uuid()",
            "SELECT * FROM installation",
            "SELECT transaction_id FROM entitlement_audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
