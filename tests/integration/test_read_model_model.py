"""P1: events, in any order and any number of times, leave each right as the newest of them says."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from grantwire.errors import RejectedError
from grantwire.notifications.events import Event, decode
from grantwire.notifications.inbox import record as record_events
from grantwire.read_model.model import project
from tests.support.concurrency import at_once
from tests.support.read_model import PROJECTED, Right, clear, event_of, model, payloads, right

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

# Names whose order depends on the collation, and one that begins like another.
NAMES = ["a", "B", "_", "Z", "é", "a/b", "ab"]


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins with empty tables."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def _empty(rows: Rows) -> None:
    clear(rows)


def projected(database_url: str, *rights: Right) -> int:
    """Project the events that led to these, in one batch and one transaction; how many rights changed."""
    with psycopg.connect(database_url) as tx:
        return project(tx, payloads(rights))


def written(rows: Rows) -> list[dict[str, Any]]:
    """The rows with the transaction that wrote each: equal only if nobody has touched them."""
    return rows.execute("SELECT *, xmin FROM user_entitlements ORDER BY user_id").fetchall()


def test_the_same_event_twice_leaves_one_row_and_one_change(database_url: str, rows: Rows) -> None:
    """P1: in one batch as well as later."""
    assert projected(database_url, right("u", 1), right("u", 1)) == 1
    before = written(rows)
    assert projected(database_url, right("u", 1)) == 0
    assert written(rows) == before
    assert model(rows) == [right("u", 1)]


def test_an_older_version_never_overwrites_a_newer_one(database_url: str, rows: Rows) -> None:
    """P1: and neither does another event with the same version."""
    projected(database_url, right("u", 3))
    before = written(rows)
    assert projected(database_url, right("u", 2)) == 0
    assert projected(database_url, right("u", 3)._replace(status="REVOKED")) == 0
    assert written(rows) == before


def test_a_gap_in_the_versions_is_accepted(database_url: str, rows: Rows) -> None:
    """P1: what is later wins, whether or not it is the next; the first seen need not be the first there was."""
    projected(database_url, right("u", 4))
    assert projected(database_url, right("u", 9)) == 1
    assert model(rows) == [right("u", 9)]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_of_several_versions_in_one_batch_the_newest_counts(
    database_url: str, rows: Rows, order: tuple[int, ...]
) -> None:
    """P1: one row is written once, whatever the order."""
    batch = [right(name, version) for version in order for name in NAMES]
    assert projected(database_url, *batch) == len(NAMES)
    assert model(rows) == sorted(right(name, 3) for name in NAMES)


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
def test_data_that_make_no_right_are_refused(database_url: str, rows: Rows, field: str, value: object) -> None:
    """N5, P1: the event is at fault, not the database, and its batch leaves nothing."""
    good, bad = payloads([right("u", 1), right("v", 1)])
    with pytest.raises(RejectedError), psycopg.connect(database_url) as tx:
        project(tx, [good, bad | {field: value}])
    assert model(rows) == []


def test_rights_in_common_are_waited_for_in_one_order(database_url: str, rows: Rows) -> None:
    """P1: four transactions with other events of the same rights, in all directions; none is a victim."""
    rights = [(f"{name}{number}", sku) for number in range(20) for name in NAMES for sku in ("x", "Y", "ü")]

    def write(version: int) -> int:
        batch = [right(user, version + 1, sku) for user, sku in rights]
        return projected(database_url, *batch[:: 1 - 2 * (version % 2)])

    for _ in range(3):
        rows.execute("DELETE FROM user_entitlements")
        assert sum(at_once(4, write)) >= len(rights)
        assert model(rows) == sorted(right(user, 4, sku) for user, sku in rights)


@pytest.fixture
def tx(database_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """The connection of all histories."""
    with psycopg.connect(database_url, autocommit=True) as tx:
        yield tx


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Right], list[list[Event]]]:
    """Where some rights end, and their events with repeats: in any order, in any batches, some versions missing."""
    ends = draw(
        st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from("xY")), st.integers(1, 5), max_size=5)
    )
    changes = [right(user, version, sku) for (user, sku), end in ends.items() for version in range(1, end + 1)]
    last = [right(user, end, sku) for (user, sku), end in ends.items()]
    discarded = draw(st.sets(st.sampled_from(changes))) - set(last) if changes else set()
    events = [decode(event_of(one).SerializeToString(), {}) for one in changes if one not in discarded]
    repeats = draw(st.lists(st.sampled_from(events), max_size=8)) if events else []
    shuffled = draw(st.permutations([*events, *repeats]))
    cuts = sorted(draw(st.sets(st.integers(0, len(shuffled)))) | {0, len(shuffled)})
    return sorted(last), [shuffled[start:end] for start, end in pairwise(cuts)]


@given(histories())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_ends_as_the_record_says(
    tx: psycopg.Connection[tuple[Any, ...]], history: tuple[list[Right], list[list[Event]]]
) -> None:
    """P1: every order, every repeat, every division into batches, through the inbox as the bridge does it."""
    last, batches = history
    for table in PROJECTED:
        tx.execute(f"DELETE FROM {table}")  # noqa: S608
    for batch in batches:
        with tx.transaction():
            record_events(tx, batch)
    with tx.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("SELECT * FROM user_entitlements ORDER BY user_id, stock_keeping_unit").fetchall()
    assert [Right(*row.values()) for row in found] == last
