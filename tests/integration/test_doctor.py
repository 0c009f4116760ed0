"""T4: doctor finds what is wrong with PostgreSQL and NATS, and says how to repair it."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from grantwire_cli.checks.findings import Finding, Level
from infra.local.doctor import postgres
from infra.local.doctor.durability import check_durability
from infra.local.doctor.nats import check_nats
from infra.local.doctor.postgres import RULES, check_postgres
from infra.local.system.processes import wait_until
from tests.integration.test_topology import change_stream
from tests.support.nats_users import NatsWithUsers, configure, configured
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from typing import LiteralString

    from tests.integration.conftest import Rows

# Test servers do not wait for the disk, which doctor must notice.
UNSAFE = {"fsync", "full_page_writes", "synchronous_commit"}


def problems(owner_url: str) -> list[Finding]:
    """Return the problems of a database, without those of a test server."""
    with psycopg.connect(owner_url, autocommit=True) as connection:
        findings = list(check_postgres(connection, migrate="migrate it"))
    return [
        finding
        for finding in findings
        if finding.level is Level.PROBLEM and finding.message.partition(" ")[0] not in UNSAFE
    ]


def test_healthy_database_has_no_problems(owner_url: str) -> None:
    """T4: on every supported PostgreSQL, as the owner."""
    assert problems(owner_url) == []


def test_unsafe_settings_are_problems(owner_url: str) -> None:
    """T4: each rule is about a setting that exists; a wrong value is reported with the statement that repairs it."""
    name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(owner_url)["dbname"])  # type: ignore[arg-type]
    with psycopg.connect(owner_url, autocommit=True) as connection:
        ((known,),) = connection.execute(
            "SELECT count(*) FROM pg_settings WHERE name = ANY(%s)", [list(RULES)]
        ).fetchall()
        assert known == len(RULES)
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'").format(name)
        )
    (found,) = problems(owner_url)
    assert found.message.startswith("default_transaction_isolation is repeatable read")
    assert found.repair == "ALTER SYSTEM SET default_transaction_isolation = 'read committed'; SELECT pg_reload_conf();"


def test_deployment_that_needs_more_connections_is_a_problem(owner_url: str) -> None:
    """J3: max_connections against the reserved concurrency, before the deployment."""
    with psycopg.connect(owner_url, autocommit=True) as connection:
        few, many = (
            {one.message for one in check_postgres(connection, migrate="m", connections=needed)}
            for needed in (10, 10_000)
        )
    assert "can open" not in str(few)
    assert "the deployment can open 10000 connections, and " in str(many)


def test_server_that_does_not_wait_for_the_disk_is_a_problem(owner_url: str) -> None:
    """T4: fsync is off on this server."""
    with psycopg.connect(owner_url, autocommit=True) as connection:
        ((value,),) = connection.execute("SELECT current_setting('fsync')").fetchall()
        found = [finding for finding in check_postgres(connection, migrate="m") if finding.message.startswith("fsync")]
    assert [finding.level for finding in found] == ([Level.PROBLEM] if value == "off" else [])


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM schema_migrations WHERE name = 'roles.sql'", "not applied: roles.sql"),
        (
            "UPDATE schema_definitions SET checksum = 'x' WHERE name LIKE '%change_entitlement.sql'",
            "applied with other content",
        ),
        ("DROP TABLE schema_definitions", "the database has no schema"),
        ("REVOKE SELECT ON entitlements FROM grantwire_functions", "grantwire_functions lacks privileges"),
        ("GRANT SELECT ON entitlement_audit TO grantwire_functions", "grantwire_functions has more privileges"),
    ],
)
def test_changed_schema_or_privilege_is_a_problem(rows: Rows, owner_url: str, statement: str, message: str) -> None:
    """T4: missing and changed migrations, missing and excessive privileges."""
    rows.execute(statement.encode())
    (found,) = problems(owner_url)
    assert found.message.startswith(message)
    assert found.repair


def test_clocks_that_differ_are_a_warning(owner_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: by more than a second."""
    now = time.time
    monkeypatch.setattr("infra.local.doctor.postgres.time.time", lambda: now() + 30)
    with psycopg.connect(owner_url, autocommit=True) as connection:
        found = next(check_postgres(connection, migrate="m"))
    assert (found.check, found.level) == ("clock", Level.WARNING)
    assert "by 30." in found.message


@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT pg_sleep(600)"], ids=["idle", "active"])
def test_open_transaction_is_a_warning(
    owner_url: str, database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, statement: LiteralString
) -> None:
    """T4: of the functions, also while it is idle; a session without a transaction is none."""

    def warnings() -> list[tuple[str, str]]:
        with psycopg.connect(owner_url, autocommit=True) as connection:
            found = [finding for finding in check_postgres(connection, migrate="m") if finding.level is Level.WARNING]
        return [(finding.message.partition(" of ")[0], finding.repair) for finding in found]

    def is_in(state: str) -> bool:
        query = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = %s"
        return rows.execute(query, (session.info.backend_pid, state)).rowcount == 1

    monkeypatch.setattr(postgres, "LONG_TRANSACTION_SECONDS", 0)
    session = psycopg.connect(database_url)
    with closing(session), ThreadPoolExecutor(1) as thread:
        repair = f"find out what it does; then SELECT pg_terminate_backend({session.info.backend_pid})"
        running = thread.submit(session.execute, statement)
        try:
            assert wait_until(lambda: is_in("active" if "sleep" in statement else "idle in transaction"), 30)
            assert warnings() == [("a transaction", repair)]
        finally:
            session.cancel()
        with suppress(psycopg.errors.QueryCanceled):
            running.result()
        session.rollback()
        assert warnings() == []


def test_owner_who_cannot_see_other_logins_is_a_warning(owner_url: str, rows: Rows) -> None:
    """T4, W3: the owner of the schema need not be a superuser; the repair makes the warning go away."""
    role = sql.Identifier(f"doctor_{uuid.uuid4().hex}")
    rows.execute(sql.SQL("CREATE ROLE {} IN ROLE pg_read_all_data").format(role))
    try:
        rows.execute(sql.SQL("ALTER FUNCTION oldest_writing_transaction_of_all OWNER TO {}").format(role))
        with psycopg.connect(owner_url, autocommit=True) as connection:
            findings = list(check_postgres(connection, migrate="m"))
            (found,) = [finding for finding in findings if "cannot see" in finding.message]
            assert found.level is Level.WARNING
            rows.execute(found.repair.encode())
            findings = list(check_postgres(connection, migrate="m"))
            assert not [finding for finding in findings if "cannot see" in finding.message]
    finally:
        rows.execute(sql.SQL("REASSIGN OWNED BY {0} TO CURRENT_USER").format(role))
        rows.execute(sql.SQL("DROP ROLE {}").format(role))


def test_streams_are_compared_with_the_settings(database_url: str, nats_url: str) -> None:
    """T4: missing streams, then a duplicate window that differs, then nothing."""
    environ = worker_environ(database_url, nats_url)
    missing = check_nats(environ, configure="configure it")
    assert any("is missing" in finding.message and finding.repair == "configure it" for finding in missing)
    configure(environ)
    levels = {finding.check: finding.level for finding in check_nats(environ, configure="c")}
    assert levels == {"NATS": Level.OK, "streams": Level.OK, "lag": Level.OK, "durability": Level.WARNING}
    change_stream(environ, environ["ENTITLEMENT_NATS_STREAM"], duplicate_window=1)
    (found,) = [finding for finding in check_nats(environ, configure="c") if finding.level is Level.PROBLEM]
    assert "duplicate_window is 1" in found.message


def test_time_of_the_flush_is_read_and_explained(nats_server: NatsWithUsers) -> None:
    """T4, W1: from the running server, at the default interval and with `always`; without an address, how to see it."""
    environ = configured(worker_environ("postgresql://unused", nats_server.url))

    def durability(**options: bool) -> Finding:
        assert wait_until(lambda: bool(nats_server.monitoring_url), 30)
        named = environ | {"NATS_MONITORING_URL": nats_server.monitoring_url}
        (found,) = [finding for finding in check_nats(named, configure="c", **options) if finding.check == "durability"]
        return found

    late = durability()
    assert late.level is Level.WARNING
    assert late.message.startswith("1 replica, sync_interval 120 s of grantwire")
    assert "sync_interval: always" in late.repair
    assert durability(is_local=True) == Finding(late.check, Level.OK, late.message)

    (unknown,) = [finding for finding in check_nats(environ, configure="c") if finding.level is not Level.OK]
    assert (unknown.level, unknown.message) == (
        Level.WARNING,
        "sync_interval is known of 0 of 1 server of the event stream",
    )
    assert "NATS_MONITORING_URL" in unknown.repair
    assert "/varz" in unknown.repair

    (late_of_three, incomplete) = check_durability(3, nats_server.monitoring_url, is_local=False)
    assert late_of_three.message.startswith("3 replicas, sync_interval 120 s of grantwire")
    assert incomplete.message == "sync_interval is known of 1 of 3 servers of the event stream"

    nats_server.write_to_disk("always")
    nats_server.start()
    durable = durability()
    assert durable.level is Level.OK
    assert durable.message.startswith("1 replica, sync_interval always")


def test_unreachable_nats_is_a_problem(database_url: str) -> None:
    """T4: nothing listens at the address."""
    environ = worker_environ(database_url, "nats://user:password@127.0.0.1:9")
    (found,) = check_nats(environ, configure="c")
    assert found.level is Level.PROBLEM
    assert "password" not in found.message
