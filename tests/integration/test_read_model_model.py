"""P1: events, in any order and repeated, leave each entitlement as its newest event describes it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from grantwire.errors import RejectedError
from grantwire.events.decoding import Event, decode
from grantwire.notifications.inbox import record_events
from grantwire.read_model.model import project
from tests.support.concurrency import run_concurrently
from tests.support.module_database import database_url
from tests.support.read_model import (
    BRIDGE_TABLES,
    Entitlement,
    clear_tables,
    entitlement,
    event_for,
    payloads,
    read_model_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

__all__ = ["database_url"]

# Names whose order depends on the collation, and names that are a prefix of others.
NAMES = ["a", "B", "_", "Z", "é", "a/b", "ab"]


@pytest.fixture(autouse=True)
def _clear_tables(rows: Rows) -> None:
    clear_tables(rows)


def project_events(database_url: str, *entitlements: Entitlement) -> int:
    """Project the events of these entitlements in one transaction, and return how many changed."""
    with psycopg.connect(database_url) as tx:
        return project(tx, payloads(entitlements))


def rows_with_transactions(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows with the transactions that wrote them, which shows any change."""
    return rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall()


def test_repeated_event_changes_one_row_once(database_url: str, rows: Rows) -> None:
    """P1: within a batch and later."""
    assert project_events(database_url, entitlement("u", 1), entitlement("u", 1)) == 1
    before = rows_with_transactions(rows)
    assert project_events(database_url, entitlement("u", 1)) == 0
    assert rows_with_transactions(rows) == before
    assert read_model_rows(rows) == [entitlement("u", 1)]


def test_older_version_never_overwrites_newer_one(database_url: str, rows: Rows) -> None:
    """P1: nor does another event with the same version."""
    project_events(database_url, entitlement("u", 3))
    before = rows_with_transactions(rows)
    assert project_events(database_url, entitlement("u", 2)) == 0
    assert project_events(database_url, entitlement("u", 3)._replace(status="REVOKED")) == 0
    assert rows_with_transactions(rows) == before


def test_gap_in_versions_is_accepted(database_url: str, rows: Rows) -> None:
    """P1: the higher version wins even if it is not the next one; the first event need not have version 1."""
    project_events(database_url, entitlement("u", 4))
    assert project_events(database_url, entitlement("u", 9)) == 1
    assert read_model_rows(rows) == [entitlement("u", 9)]


@pytest.mark.parametrize("versions", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_newest_version_of_a_batch_wins(database_url: str, rows: Rows, versions: tuple[int, ...]) -> None:
    """P1: each row is written once, in any order of the events."""
    batch = [entitlement(name, version) for version in versions for name in NAMES]
    assert project_events(database_url, *batch) == len(NAMES)
    assert read_model_rows(rows) == sorted(entitlement(name, 3) for name in NAMES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_type", "EntitlementPainted"),
        ("event_type", None),
        ("version", 0),
        ("version", 1 << 63),
        ("user_id", ""),
        ("stock_keeping_unit", "s" * 129),
        ("occurred_at", "in a while"),
    ],
)
def test_invalid_payload_is_refused(database_url: str, rows: Rows, field: str, value: object) -> None:
    """N5, P1: the event is at fault, not the database, and its batch writes nothing."""
    good, bad = payloads([entitlement("u", 1), entitlement("v", 1)])
    with pytest.raises(RejectedError), psycopg.connect(database_url) as tx:
        project(tx, [good, bad | {field: value}])
    assert read_model_rows(rows) == []


def test_transactions_with_the_same_entitlements_do_not_deadlock(database_url: str, rows: Rows) -> None:
    """P1: four transactions with different events of the same entitlements, in different orders."""
    entitlements = [(f"{name}{number}", sku) for number in range(20) for name in NAMES for sku in ("x", "Y", "ü")]

    def write(version: int) -> int:
        batch = [entitlement(user, version + 1, sku) for user, sku in entitlements]
        return project_events(database_url, *batch[:: 1 - 2 * (version % 2)])

    for _ in range(3):
        rows.execute("DELETE FROM user_entitlements")
        assert sum(run_concurrently(4, write)) >= len(entitlements)
        assert read_model_rows(rows) == sorted(entitlement(user, 4, sku) for user, sku in entitlements)


@pytest.fixture
def tx(database_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """One connection for all examples."""
    with psycopg.connect(database_url, autocommit=True) as tx:
        yield tx


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Entitlement], list[list[Event]]]:
    """Return the final entitlements, and their events with repeats: in any order and batches, some versions missing."""
    last_versions = draw(
        st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from("xY")), st.integers(1, 5), max_size=5)
    )
    changes = [
        entitlement(user, version, sku)
        for (user, sku), last_version in last_versions.items()
        for version in range(1, last_version + 1)
    ]
    last = [entitlement(user, last_version, sku) for (user, sku), last_version in last_versions.items()]
    discarded = draw(st.sets(st.sampled_from(changes))) - set(last) if changes else set()
    events = [decode(event_for(item).SerializeToString(), {}) for item in changes if item not in discarded]
    repeats = draw(st.lists(st.sampled_from(events), max_size=8)) if events else []
    shuffled = draw(st.permutations([*events, *repeats]))
    cuts = sorted(draw(st.sets(st.integers(0, len(shuffled)))) | {0, len(shuffled)})
    return sorted(last), [shuffled[start:last_version] for start, last_version in pairwise(cuts)]


@given(histories())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_ends_with_newest_versions(
    tx: psycopg.Connection[tuple[Any, ...]], history: tuple[list[Entitlement], list[list[Event]]]
) -> None:
    """P1: every order, every repeat and every division into batches, through the inbox as the bridge does it."""
    last, batches = history
    for table in BRIDGE_TABLES:
        tx.execute(f"DELETE FROM {table}")  # noqa: S608
    for batch in batches:
        with tx.transaction():
            record_events(tx, batch)
    with tx.cursor(row_factory=dict_row) as cursor:
        projected = cursor.execute("SELECT * FROM user_entitlements ORDER BY user_id, stock_keeping_unit").fetchall()
    assert [Entitlement(*row.values()) for row in projected] == last
