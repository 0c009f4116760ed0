"""C27: the library behind PgBouncer in transaction mode, where every transaction may get another session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire_idempotency import Key, PostgresStore
from grantwire_idempotency.__main__ import main
from grantwire_idempotency.errors import RetryableError
from layers.idempotency.tests.integration.test_unresponsive_postgres import stopped_backends
from tests.support.module_database import database_url
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.pgbouncer import PgBouncer, find_pgbouncer
from tests.support.servers import STATE, newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Databases

__all__ = ["database_url"]

pytestmark = [
    newest_postgres,
    pytest.mark.skipif(find_pgbouncer() is None, reason="PgBouncer is not installed: apt-get install pgbouncer"),
]

# psycopg prepares a statement when it has run five times.
KEYS = 8
# Parts on a DSN, a connection and a pool: six synchronous ones, of which locks run no work, and three others; then
# two in transactions of the program.
PARTS = 3 * (5 + 3) + 2
SESSIONS = 2

_STATE = """
SELECT pg_backend_pid(), current_setting('statement_timeout'), current_setting('lock_timeout'),
       current_setting('idle_in_transaction_session_timeout'), coalesce(current_setting('idempotency.guard', true), ''),
       (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_class WHERE relpersistence = 't')
"""
NO_STATE = ("0", "0", "0", "", 0, 0, 0, 0)


@pytest.fixture(scope="module")
def pooler(databases: Databases, database_url: str) -> Iterator[PgBouncer]:
    """Start PgBouncer in front of the server of the file's database."""
    pooler = PgBouncer(STATE / "pgbouncer", database_url, databases.cluster.url(), sessions=SESSIONS)
    pooler.start()
    yield pooler
    pooler.destroy()


def start_process(url: str) -> subprocess.Popen[str]:
    """Start a process that uses every part of the library."""
    return subprocess.Popen(
        [sys.executable, "-m", "layers.idempotency.tests.support.pooled_library", url, str(KEYS)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_sessions(url: str) -> dict[int, tuple[Any, ...]]:
    """Return the state of every session of the pooler, by its process id."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(psycopg.connect(url)) for _ in range(SESSIONS)]
        rows = [session.execute(_STATE).fetchone() for session in sessions]  # each holds a session until its end
    return {row[0]: row[1:] for row in rows if row is not None}


@pytest.mark.timeout(300)
def test_two_processes_use_every_part_and_leave_no_state(pooler: PgBouncer, database_url: str) -> None:
    """C27: each work runs once, and no setting, prepared statement or lock of a client is left for the next one."""
    url = pooler.url(database_url)
    processes = [start_process(f"{url}?connect_timeout=30") for _ in range(2)]
    runs: Counter[str] = Counter()
    for process in processes:
        output, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors
        runs.update(json.loads(output))
    assert set(runs.values()) == {1}
    assert len(runs) == PARTS * KEYS
    sessions = read_sessions(url)
    assert len(sessions) == SESSIONS
    assert set(sessions.values()) == {NO_STATE}


def test_schema_command_works_through_the_pooler(
    pooler: PgBouncer, databases: Databases, capsys: pytest.CaptureFixture[str]
) -> None:
    """C27, C15: its lock and its settings end with each transaction."""
    direct = databases.empty()
    try:
        for expected in ("applied tables/0001", "up to date"):
            assert main(["schema", "--apply", "--database", pooler.url(direct)]) == 0
            assert expected in capsys.readouterr().out
        assert set(read_sessions(pooler.url(direct)).values()) == {NO_STATE}
    finally:
        databases.drop(direct)


def test_stopped_session_behind_the_pooler_is_unavailable(pooler: PgBouncer, database_url: str) -> None:
    """C26, C27: the limit is on the client's side, so the pooler in between changes nothing."""
    url = pooler.url(database_url)
    with closing(PostgresStore(url, timeout=timedelta(seconds=2))) as store:
        store.get_result(Key("k"))
        with stopped_backends(database_url), pytest.raises(RetryableError):
            store.check(Key("k"), timedelta(minutes=1))
