"""W7: batches of the same entitlements, in any order, while all workers run."""

from __future__ import annotations

from tests.support.contention import contend


def test_contended_batches_and_workers_never_deadlock(database_url: str, owner_url: str) -> None:
    """W7: no deadlock and no 503, and all entitlements and events are as they must be.

    `make check ARGS=contention` is the long run.
    """
    outcome = contend(database_url, owner_url, batches=24)
    assert (outcome.batches, outcome.deadlocks, outcome.broken) == (24, 0, 0)
    assert outcome.statuses.keys() <= {"200", "409", "BadRequestError"}
    assert outcome.worked["published"] > 0
    assert outcome.worked["put back"] > 0
    assert outcome.worked["stuck"] == 0
