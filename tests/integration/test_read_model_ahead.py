"""G1: the sweep finds rows of the read model that are ahead of the system of record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.observability import metrics
from grantwire.retention import RetentionSettings, Sweep
from grantwire.retention import sweep as sweep_module
from grantwire.retention.checks import compare_read_model
from grantwire.settings import load
from grantwire.workers.budget import Budget
from tests.support.dead_letters import budget
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import DAMAGE, copy_to_read_model, entitlement, insert_entitlements, rebuild
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

USERS = [f"u{number:02}" for number in range(20)]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The database, with the role of the functions."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield database
    database.close()


@pytest.fixture
def _equal(rows: Rows) -> None:
    """Insert entitlements that system of record and read model agree on."""
    insert_entitlements(rows, [entitlement(user, 2) for user in USERS])
    copy_to_read_model(rows)


def _sweep(database: Database) -> Sweep:
    return Sweep(database, load(RetentionSettings, {}))


def _reported(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    metrics.flush_metrics()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line.get("message") == "read model rows ahead of record"]


@pytest.mark.usefixtures("_equal")
def test_sweep_reports_rows_that_no_event_explains(
    database: Database, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """G1: ahead, or without an entitlement; the log names no user. A rebuild from the record repairs them."""
    rows.execute(DAMAGE["ahead"], (USERS[3],))
    rows.execute(DAMAGE["extra"], ("u_never",))
    assert run_worker(_sweep(database), budget())["ahead"] == 2
    (line,) = _reported(capsys)
    assert (line["level"], line["count"]) == ("ERROR", 2)
    assert sorted(line["examples"]) == ["item1 version 52", "never granted version 1"]
    assert USERS[3] not in json.dumps(line)
    assert rebuild(database).complete
    assert run_worker(_sweep(database), budget())["ahead"] == 0
    assert _reported(capsys) == []


@pytest.mark.usefixtures("_equal")
def test_rows_that_wait_for_their_events_are_not_reported(database: Database, rows: Rows) -> None:
    """G1: missing and behind are normal while events are on their way."""
    rows.execute(DAMAGE["missing"], (USERS[1],))
    rows.execute(DAMAGE["behind"], (USERS[2],))
    assert run_worker(_sweep(database), budget())["ahead"] == 0


@pytest.mark.usefixtures("_equal")
@pytest.mark.parametrize("limit", [1, 7, 20, 21])
def test_every_page_is_checked_once(database_url: str, rows: Rows, limit: int) -> None:
    """G1: pages follow the primary key and end with the last row."""
    rows.execute(DAMAGE["ahead"], (USERS[0],))
    rows.execute(DAMAGE["ahead"], (USERS[-1],))
    found, after, pages = 0, ("", ""), 0
    with psycopg.connect(database_url) as tx:
        while True:
            page = compare_read_model(tx, after, limit)
            found, pages = found + page.ahead, pages + 1
            if page.last is None:
                break
            after = page.last
    assert (found, pages) == (2, len(USERS) // limit + 1)


@pytest.mark.usefixtures("_equal")
def test_check_continues_where_the_budget_ended(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1, R4: the next run of the same worker checks the rest, so that no part stays unchecked."""
    monkeypatch.setattr(sweep_module, "_READ_MODEL_PAGE_SIZE", 5)
    rows.execute(DAMAGE["ahead"], (USERS[-1],))
    sweep = _sweep(database)
    results = []
    for steps in (20, 400):
        count = 0

        def clock(limit: int = steps) -> float:
            nonlocal count
            count += 1
            return 2.0 if count > limit else 0.0

        results.append(run_worker(sweep, Budget(1.0, clock=clock)))
    assert [(result["ahead"], result["complete"]) for result in results] == [(0, False), (1, True)]
