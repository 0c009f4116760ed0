"""C29: `python -m grantwire_idempotency cleanup`, in PostgreSQL and in a SQLite file."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire_idempotency import Claim, Duplicate, Key, SqliteStore
from grantwire_idempotency.__main__ import main
from grantwire_idempotency._internal.postgres import schema
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Databases

_INSERT = """
INSERT INTO processed_messages
       (idempotency_key, message_id, message_type, status, started_at, completed_at, expires_at, completed_by,
        completed_until)
SELECT %(name)s || n, 'm', 'job', 'completed', now(), now(), now() + %(lives)s, 'token', now() + %(lives)s
  FROM generate_series(1, %(count)s) n;
INSERT INTO idempotency_keys
SELECT 'ann', 'POST /orders', %(name)s || n, 'v1:0', 201, '', now() - interval '1 day', now() + %(lives)s
  FROM generate_series(1, %(count)s) n;
INSERT INTO distributed_locks
SELECT %(name)s || n, 'worker', now() - interval '1 day', now() + %(lives)s FROM generate_series(1, %(count)s) n;
"""
_COUNT = """
SELECT (SELECT count(*) FROM processed_messages), (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM distributed_locks)
"""
_LOCK = "SELECT FROM processed_messages WHERE idempotency_key LIKE 'expired-%' LIMIT 1 FOR UPDATE"
EXPIRED = timedelta(minutes=-1)
LIVE = timedelta(minutes=10)


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """Return the address of a database with 1,500 expired and 10 live rows in each table."""
    url = databases.empty()
    schema.apply(url)
    with psycopg.ClientCursor(psycopg.connect(url, autocommit=True)) as cursor, cursor.connection:
        for name, lives, count in (("expired-", EXPIRED, 1_500), ("live-", LIVE, 10)):
            cursor.execute(_INSERT, {"name": name, "lives": lives, "count": count})
    yield url
    databases.drop(url)


def count_rows(url: str) -> tuple[int, ...]:
    """Return the number of rows of each table."""
    with psycopg.connect(url) as connection:
        row = connection.execute(_COUNT).fetchone()
        assert row is not None
        return row


@newest_postgres
def test_cleanup_deletes_expired_rows_of_every_table(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C29: in batches; a row that a transaction has locked is left for the next run, without a wait."""
    monkeypatch.setenv("DATABASE_URL", url)
    assert main(["cleanup", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "processed_messages: 1,500 expired",
        "idempotency_keys: 1,500 expired",
        "distributed_locks: 1,500 expired",
    ]
    assert count_rows(url) == (1_510, 1_510, 1_510)
    assert main(["cleanup", "--batches", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "processed_messages: 1,000 deleted, more may be left"
    assert count_rows(url) == (510, 510, 510)
    with psycopg.connect(url) as other:
        other.execute(_LOCK)
        assert main(["cleanup"]) == 0
        assert count_rows(url) == (11, 10, 10)
    assert main(["cleanup"]) == 0
    assert count_rows(url) == (10, 10, 10)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "processed_messages: 1 deleted",
        "idempotency_keys: 0 deleted",
        "distributed_locks: 0 deleted",
    ]


def test_cleanup_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C29: what has not expired stays."""
    path, now = tmp_path / "keys.db", datetime.now(UTC)
    with closing(SqliteStore(path, clock=lambda: now)) as store:
        for number, ttl in enumerate((LIVE, timedelta(milliseconds=1), timedelta(milliseconds=1))):
            now = datetime.now(UTC) - timedelta(minutes=1)
            claim = store.check(Key(f"key-{number}"), LIVE)
            assert isinstance(claim, Claim)
            store.store_result(claim, "done", ttl)
    assert main(["cleanup", "--sqlite", str(path), "--dry-run"]) == 0
    assert main(["cleanup", "--sqlite", str(path)]) == 0
    assert main(["cleanup", "--sqlite", str(path), "--batches", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "processed_messages: 2 expired",
        "processed_messages: 2 deleted",
        "processed_messages: 0 deleted",
    ]
    with closing(SqliteStore(path)) as store:
        assert store.check(Key("key-0"), LIVE) == Duplicate(Key("key-0"), "done")


def test_cleanup_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C29: exit code 2 for wrong arguments, 1 for what cannot be opened; a wrong path creates no file."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    for arguments in ([], ["--batches", "0"], ["--batches", "some"]):
        with pytest.raises(SystemExit) as exited:
            main(["cleanup", *arguments])
        assert exited.value.code == 2
    assert main(["cleanup", "--sqlite", str(tmp_path / "keys.db")]) == 1
    assert list(tmp_path.iterdir()) == []
    assert main(["cleanup", "--database", "postgresql://127.0.0.1:1/x"]) == 1
    error = capsys.readouterr().err
    assert "must be at least 1" in error
    assert "there is no file" in error
    assert "could not clean up: temporarily unavailable" in error
