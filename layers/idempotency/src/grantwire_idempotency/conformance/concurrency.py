"""Concurrent callers, each with its own connection: the store decides atomically (C3, C4)."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest

from grantwire_idempotency._internal.stores.interface import Claim, InProgress, Key, KeyState, KeyStatus
from grantwire_idempotency.conformance.calls import DAY, MINUTE, StoreTests, claim_key, complete, outcome
from grantwire_idempotency.errors import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency._internal.stores.interface import CheckResult, Store
    from grantwire_idempotency.conformance.harness import Harness

T = TypeVar("T")


class ConcurrencyConformance(StoreTests):
    """Concurrent callers, each with its own connection: the store decides atomically (C3, C4)."""

    @pytest.mark.parametrize(
        "before", ["nothing", "an expired claim", "a failure", "an older version", "an expired completion"]
    )
    def test_exactly_one_of_many_concurrent_checks_gets_claim(
        self, harness: Harness, store: Store, before: str
    ) -> None:
        """C4: in any initial state; threads with their own connections."""
        count = 8
        stores = harness.stores(count)
        for attempt in range(5):
            entity = f"attempt {attempt}"
            if before == "an expired claim":
                claim_key(store, Key(entity))
            elif before == "a failure":
                store.store_failure(claim_key(store, Key(entity)), "no", DAY)
            elif before == "an older version":
                complete(store, Key(entity, mark=1), "one")
            elif before == "an expired completion":
                complete(store, Key(entity, mark=9), "old", MINUTE)
            harness.advance(timedelta(hours=1))
            key = Key(entity, mark=2 if "version" in before or "completion" in before else None)

            def check(number: int, key: Key = key) -> CheckResult:
                return stores[number].check(key, MINUTE)

            checks = run_concurrently(count, check)
            assert sorted(map(outcome, checks)) == ["Claim"] + ["InProgress"] * (count - 1)

    def test_concurrent_versions_end_with_last_and_run_no_stale_one(self, harness: Harness, store: Store) -> None:
        """001, C3: versions 2 to 5 run concurrently in any order; a version in progress is retried."""
        marks = [2, 3, 4, 5]
        stores = harness.stores(len(marks))
        for attempt in range(8):
            entity = f"attempt {attempt}"
            order = random.Random(attempt).sample(marks, len(marks))  # noqa: S311
            ran: list[int] = []

            def consume(number: int, entity: str = entity, order: list[int] = order, ran: list[int] = ran) -> None:
                key = Key(entity, mark=order[number])
                check = stores[number].check(key, DAY)
                while isinstance(check, InProgress):
                    check = stores[number].check(key, DAY)
                if isinstance(check, Claim):
                    ran.append(order[number])
                    stores[number].store_result(check, str(order[number]), DAY)

            run_concurrently(len(marks), consume)
            assert ran[-1] == 5
            assert all(earlier < later for earlier, later in pairwise(ran)), f"a stale version ran: {ran}"
            assert store.get_result(Key(entity)) == KeyState(KeyStatus.COMPLETED, "5", mark=5)

    def test_late_completion_never_beats_takeover(self, harness: Harness, store: Store) -> None:
        """The late completion is rejected, and the other run gets the claim, in any order of the two."""
        _, late_store, other_store = harness.stores(3)
        for attempt in range(12):
            key = Key(f"attempt {attempt}")
            late = claim_key(store, key)
            harness.advance(timedelta(hours=1))

            def complete_or_check(number: int, key: Key = key, late: Claim = late) -> str:
                if number:
                    return outcome(other_store.check(key, MINUTE))
                try:
                    late_store.store_result(late, "late", DAY)
                except LeaseLostError:
                    return "rejected"
                return "completed"

            assert run_concurrently(2, complete_or_check) == ["rejected", "Claim"]


def run_concurrently(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(count - 1)` in threads that start together, and return their results in order."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait(timeout=30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))
