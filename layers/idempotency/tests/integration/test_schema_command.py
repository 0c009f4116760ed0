"""C15: the schema command of the library."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire_idempotency import (
    Claim,
    InboxGuard,
    Key,
    Message,
    Outcome,
    PostgresLocks,
    PostgresStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
)
from grantwire_idempotency.__main__ import main
from grantwire_idempotency._internal.postgres import schema
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Databases


MINUTE = timedelta(minutes=1)
# Who has a privilege on a table, sequence or function of the schema, beside its owner. The roles of the service exist
# on the server, so a grant to one of them would not fail.
GRANTEES = """
SELECT name, grantee::regrole::text
  FROM (SELECT relname AS name, relowner AS owner, relacl AS acl FROM pg_class
         WHERE relnamespace = 'public'::regnamespace
         UNION ALL
        SELECT proname, proowner, proacl FROM pg_proc
         WHERE pronamespace = 'public'::regnamespace) o, aclexplode(o.acl)
 WHERE grantee <> owner
"""


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    """Return the address of an empty database, for its owner."""
    url = databases.empty()
    yield url
    databases.drop(url)


def test_schema_command_creates_everything_and_nothing_else(empty_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """C15: tables, a sequence and functions, without a role of the service; the printed script does the same."""
    assert main(["schema", "--apply", "--database", empty_url]) == 0
    applied = capsys.readouterr().out
    assert applied.count("applied tables/") == len(schema.read_tables())
    with psycopg.connect(empty_url) as connection:
        tables = {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
        assert tables == {*schema.TABLES, "idempotency_schema"}
        assert connection.execute(GRANTEES).fetchall() == []
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    assert main(["schema"]) == 0
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(capsys.readouterr().out.encode(), prepare=False)
    assert schema.apply(empty_url) == []


def test_schema_is_upgraded_in_numbered_steps(
    empty_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15: a database with an older version gets only what it lacks, also by a printed script."""
    schema.apply(empty_url)
    upgrade = schema.SqlFile("tables/0002_note.sql", "ALTER TABLE processed_messages ADD note text;")
    third = schema.SqlFile("tables/0003_color.sql", "ALTER TABLE processed_messages ADD color text;")
    released = [*schema.read_tables(), upgrade, third]
    monkeypatch.setattr(schema, "read_tables", lambda: released[:2])
    assert "tables/0002_note.sql" in schema.apply(empty_url)
    monkeypatch.setattr(schema, "read_tables", lambda: released)
    assert main(["schema", "--after", "2"]) == 0
    script = capsys.readouterr().out
    assert "tables/0002" not in script
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(script.encode(), prepare=False)
        assert connection.execute("SELECT note, color FROM processed_messages").fetchall() == []
    assert schema.apply(empty_url) == []


def test_changed_function_is_applied_again_and_changed_upgrade_is_refused(empty_url: str) -> None:
    """C15: functions are edited in place; an upgrade that was applied can no longer change."""
    schema.apply(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION inbox_finish")
        connection.execute("UPDATE idempotency_schema SET checksum = 'old' WHERE name = 'functions/inbox_finish.sql'")
        assert "functions/inbox_finish.sql" in schema.apply(empty_url)
        assert connection.execute("SELECT 'inbox_finish'::regproc IS NOT NULL").fetchone() == (True,)
        connection.execute("UPDATE idempotency_schema SET checksum = 'old' WHERE name LIKE 'tables/0001%'")
    with pytest.raises(InternalError, match="was changed after it was applied"):
        schema.apply(empty_url)


def test_role_gets_what_the_library_needs(empty_url: str) -> None:
    """C15: an application whose role does not own the tables can use them."""
    role = "library_user"
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {role}")
        connection.execute(f"CREATE ROLE {role}")
        schema.apply(empty_url, [role])
        connection.execute(f"SET ROLE {role}")
        row = connection.execute(
            "SELECT decision FROM processed_message_check('k', 't', NULL, 'm', '', '1 minute', NULL)"
        ).fetchone()
        assert row == ("NEW",)
        use_all_parts(connection)
        assert main(["cleanup", "--database", f"{empty_url}?options=-c%20role%3D{role}"]) == 0
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


def use_all_parts(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Use store, locks and both guards on the connection."""
    store = PostgresStore(connection)
    claim = store.check(Key("order:1"), MINUTE)
    assert isinstance(claim, Claim)
    store.extend(claim, MINUTE)
    store.store_result(claim, "done", MINUTE)
    assert store.delete_completed(-MINUTE) == 1
    assert store.cleanup() == 0
    with PostgresLocks(connection).acquire("job", MINUTE) as lock:
        lock.extend(MINUTE)
    assert InboxGuard(connection, name="orders").run(Message("m1"), lambda _: 1) == Outcome(1)
    identity = RequestIdentity.create("ann", "POST /orders", "k1", {"total": 5})
    guard = TransactionGuard(connection)
    assert [guard.run(identity, lambda _: StoredResponse(201, "")).replayed for _ in range(2)] == [False, True]


def test_command_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """C15: exit code 2 for wrong arguments, 1 for a database that cannot be reached."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(SystemExit) as exited:
        main(["schema", "--apply"])
    assert exited.value.code == 2
    assert main(["schema", "--apply", "--database", "postgresql://127.0.0.1:1/x"]) == 1
    assert "could not apply the schema" in capsys.readouterr().err
