"""O8, Q2, Q3, V1: the successors of a FAILED event stay blocked until it is redriven or discarded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.invocations import UNTIL_IDLE, Functions
from tests.support.workers.relay_support import drain, enqueue, payload, read_stream, versions_by_aggregate

if TYPE_CHECKING:
    from uuid import UUID

    from tests.integration.conftest import Rows

PARKED = "parked/item1"


class Outbox:
    """An outbox with one aggregate of several versions, some of which are FAILED."""

    def __init__(self, environ: dict[str, str], rows: Rows) -> None:
        self.environ = environ
        self.rows = rows
        self.ids: dict[int, UUID] = {}

    def add(self, version: int, aggregate: str = PARKED) -> UUID:
        """Enqueue an event, as a grant does."""
        self.ids[version] = event_id = enqueue(self.rows, aggregate, version)
        return event_id

    def fail(self, *versions: int) -> None:
        """Mark events FAILED, as if all their attempts had failed."""
        self.rows.execute(
            "UPDATE outbox_events SET status = 'FAILED', ready = false, attempt_count = 10"
            " WHERE aggregate_key = %s AND aggregate_version = ANY (%s)",
            (PARKED, list(versions)),
        )

    def call(self, function: str, *versions: int) -> int:
        """Redrive or discard events; return how many were changed."""
        statement = {
            "redrive": "SELECT outbox_redrive(%s::uuid[])",
            "discard": "SELECT outbox_discard(%s::uuid[])",
        }[function]
        return len(self.rows.execute(statement, ([self.ids[version] for version in versions],)).fetchall())

    def states(self) -> dict[int, tuple[str, bool]]:
        """Return the status and readiness of each event of the aggregate."""
        rows = self.rows.execute("SELECT * FROM outbox_events WHERE aggregate_key = %s", (PARKED,))
        return {row["aggregate_version"]: (row["status"], row["ready"]) for row in rows}

    def published(self) -> list[int]:
        """Return the versions of the aggregate in the stream."""
        return versions_by_aggregate(read_stream(self.environ)).get(PARKED, [])


BLOCKED = ("PENDING", False)
READY = ("PENDING", True)
BEHIND_A_FAILED_EVENT = {1: ("PUBLISHED", False), 2: ("FAILED", False), 3: BLOCKED, 4: BLOCKED, 5: BLOCKED}


@pytest.fixture
def outbox(environ: dict[str, str], rows: Rows) -> Outbox:
    """Version 1 is PUBLISHED, version 2 is FAILED, and versions 3 to 5 were released behind it."""
    outbox = Outbox(environ, rows)
    for version in range(1, 6):
        outbox.add(version)
    rows.execute("UPDATE outbox_events SET payload = '{}' WHERE event_id = %s", (outbox.ids[2],))
    result = drain(environ)
    assert (result["published"], result["failed"]) == (1, 1)
    return outbox


def _enqueue_successor(outbox: Outbox) -> None:
    outbox.add(6)
    assert outbox.states()[6] == BLOCKED
    outbox.rows.execute("DELETE FROM outbox_events WHERE event_id = %s", (outbox.ids[6],))


def _publish_others(outbox: Outbox) -> None:
    for version in (1, 2):
        enqueue(outbox.rows, "other/item1", version)
    assert drain(outbox.environ)["published"] == 2


def _sweep(outbox: Outbox) -> None:
    with Functions(outbox.environ) as functions:
        assert functions.invoke("sweep_retention", UNTIL_IDLE)["stuck"] == 0


def _promote_aggregate(outbox: Outbox) -> None:
    promoted = outbox.rows.execute("SELECT outbox_promote(ARRAY[%s]) AS n", (PARKED,)).fetchall()
    assert promoted == [{"n": 0}]


def _promote_stuck(outbox: Outbox) -> None:
    assert outbox.rows.execute("SELECT outbox_promote_stuck() AS n").fetchall() == [{"n": 0}]


def _redrive_successors(outbox: Outbox) -> None:
    assert outbox.call("redrive", 1, 3, 4, 5) == 0


def _discard_successors(outbox: Outbox) -> None:
    assert outbox.call("discard", 1, 3, 4, 5) == 0


def _redrive_and_discard_others(outbox: Outbox) -> None:
    others = [enqueue(outbox.rows, f"other{number}/item1", 1) for number in range(2)]
    outbox.rows.execute(
        "UPDATE outbox_events SET status = 'FAILED', ready = false WHERE event_id = ANY (%s)", (others,)
    )
    assert len(outbox.rows.execute("SELECT outbox_redrive(%s::uuid[])", (others[:1],)).fetchall()) == 1
    assert len(outbox.rows.execute("SELECT outbox_discard(%s::uuid[])", (others[1:],)).fetchall()) == 1
    assert drain(outbox.environ)["published"] == 1


def test_no_other_action_unblocks_the_successors_of_a_failed_event(outbox: Outbox) -> None:
    """O8, V1: not claim, complete, fail and release in the fixture, and none of the actions below."""
    assert outbox.states() == BEHIND_A_FAILED_EVENT
    for action in (
        _enqueue_successor,
        _promote_aggregate,
        _promote_stuck,
        _sweep,
        _redrive_successors,
        _discard_successors,
        _redrive_and_discard_others,
        _publish_others,
    ):
        action(outbox)
        assert outbox.states() == BEHIND_A_FAILED_EVENT, action.__name__
    assert drain(outbox.environ)["published"] == 0
    assert outbox.published() == [1]


@pytest.mark.parametrize(("action", "expected"), [("redrive", [1, 2, 3, 4, 5]), ("discard", [1, 3, 4, 5])])
def test_redrive_and_discard_unblock_the_successors(outbox: Outbox, action: str, expected: list[int]) -> None:
    """Q2, Q3: a redriven event is published before its successors; after a discard the next event is the head."""
    repaired = json.dumps(payload(outbox.ids[2], 2))
    outbox.rows.execute("UPDATE outbox_events SET payload = %s WHERE event_id = %s", (repaired, outbox.ids[2]))
    assert outbox.call(action, 2) == 1
    head = 2 if action == "redrive" else 3
    assert [version for version, (_, ready) in outbox.states().items() if ready] == [head]
    drain(outbox.environ)
    assert outbox.published() == expected


@pytest.mark.parametrize("reclaimed", [False, True], ids=["claimed", "reclaimed from a relay that died"])
def test_completing_the_event_before_a_failed_one_unblocks_nothing(
    environ: dict[str, str], rows: Rows, reclaimed: bool
) -> None:
    """O8, V1: version 2 is already FAILED when version 1 is published; versions 3 and 4 stay blocked."""
    outbox = Outbox(environ, rows)
    for version in range(1, 5):
        outbox.add(version)
    outbox.fail(2)
    if reclaimed:
        rows.execute(
            "UPDATE outbox_events SET status = 'IN_FLIGHT', locked_by = 'dead', locked_at = now() - interval '1 h',"
            " lease_until = now() - interval '1 s' WHERE aggregate_version = 1"
        )
    assert drain(environ)["published"] == 1
    assert outbox.states() == {1: ("PUBLISHED", False), 2: ("FAILED", False), 3: BLOCKED, 4: BLOCKED}
    assert outbox.published() == [1]


def test_event_behind_several_failed_ones_waits_for_all(environ: dict[str, str], rows: Rows) -> None:
    """Q2, Q3, V1: redriving or discarding a later event unblocks nothing while an earlier one is FAILED."""
    outbox = Outbox(environ, rows)
    for version in range(1, 6):
        outbox.add(version)
    outbox.fail(1, 2, 3)
    blocked = {4: BLOCKED, 5: BLOCKED}
    assert outbox.call("redrive", 2) == 1
    assert outbox.states() == {1: ("FAILED", False), 2: BLOCKED, 3: ("FAILED", False)} | blocked
    assert outbox.call("discard", 3) == 1
    assert outbox.states() == {1: ("FAILED", False), 2: BLOCKED, 3: ("DISCARDED", False)} | blocked
    assert drain(environ)["published"] == 0
    assert outbox.call("discard", 1) == 1
    assert outbox.states() == {1: ("DISCARDED", False), 2: READY, 3: ("DISCARDED", False)} | blocked
    drain(environ)
    assert outbox.published() == [2, 4, 5]


def test_successor_enqueued_while_its_predecessor_fails_is_blocked(
    environ: dict[str, str], owner_url: str, rows: Rows
) -> None:
    """O8, V1: the enqueueing transaction begins before the failure and commits after it."""
    outbox = Outbox(environ, rows)
    outbox.add(1)
    rows.execute("UPDATE outbox_events SET payload = '{}'")
    with psycopg.connect(owner_url) as late:
        late.execute("SELECT 1")
        assert drain(environ)["failed"] == 1
        enqueue(late, PARKED, 2)
        late.commit()
    outbox.add(3)
    assert outbox.states() == {1: ("FAILED", False), 2: BLOCKED, 3: BLOCKED}
    assert drain(environ)["published"] == 0
