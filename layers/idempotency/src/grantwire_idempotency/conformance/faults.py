"""Lost responses, pauses and clock differences (C20)."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency._internal.stores.interface import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus
from grantwire_idempotency.conformance.calls import (
    DAY,
    KEY,
    MINUTE,
    StoreTests,
    claim_key,
    complete,
    has_fences,
    outcome,
    version,
)
from grantwire_idempotency.conformance.clocks import set_clock_wrong
from grantwire_idempotency.errors import LeaseLostError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.stores.interface import Store
    from grantwire_idempotency.conformance.harness import Harness


class FaultConformance(StoreTests):
    """Lost responses, pauses and clock differences (C20)."""

    # Lost responses: the store has executed a call, but the caller does not know it and repeats it.

    def test_repeated_check_gets_its_claim_again(self, harness: Harness, store: Store) -> None:
        """C20: a check whose response was lost does not block its own run, with and without a mark."""
        for key in (KEY, version(3)):
            first = store.check(key, MINUTE, "my token")
            again = store.check(key, timedelta(hours=9), "my token")
            assert isinstance(first, Claim)
            assert isinstance(again, Claim)
            assert (again.token, again.key) == ("my token", key)
            assert outcome(store.check(key, MINUTE)) == "InProgress"
            harness.advance(timedelta(hours=1))
            assert outcome(store.check(key, MINUTE)) == "InProgress"
            store.store_result(again, "done", DAY)
            assert store.check(key, MINUTE, "my token") == Duplicate(key, "done")

    def test_repeated_completion_and_release_change_nothing(self, store: Store) -> None:
        """The second call of the same run is not a lost claim."""
        claim = claim_key(store, KEY)
        for _ in range(2):
            store.store_result(claim, "done", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
        other = claim_key(store, Key("other"))
        for _ in range(2):
            store.store_failure(other, "no", DAY)
        assert store.get_result(Key("other")) == KeyState(KeyStatus.FAILED, error="no")
        claim_key(store, Key("other"))

    def test_completion_without_claim_is_rejected(self, store: Store) -> None:
        """C20: a token that has no claim completes nothing."""
        with pytest.raises(LeaseLostError):
            store.store_result(Claim(KEY), "late", DAY)
        assert store.get_result(KEY) is None

    # Pauses: a worker stops in the middle, and continues after its claim has expired.

    def test_claim_can_be_extended_while_it_is_live(self, harness: Harness, store: Store) -> None:
        """C20: the claim lasts from the extension, and not longer."""
        claim = claim_key(store, KEY, timedelta(minutes=10))
        harness.advance(timedelta(minutes=9))
        store.extend(claim, timedelta(minutes=10))
        harness.advance(timedelta(minutes=9))
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=2))
        with pytest.raises(LeaseLostError):
            store.extend(claim, MINUTE)
        claim_key(store, KEY)

    def test_paused_worker_cannot_extend_or_complete_after_takeover(self, harness: Harness, store: Store) -> None:
        """C20: its successor has a higher fencing number, and is not disturbed."""
        paused = claim_key(store, KEY)
        harness.advance(timedelta(hours=1))
        successor = claim_key(store, KEY, timedelta(hours=9))
        if has_fences(harness):
            assert successor.fence > paused.fence > 0
        with pytest.raises(LeaseLostError):
            store.extend(paused, MINUTE)
        with pytest.raises(LeaseLostError):
            store.store_result(paused, "late", DAY)
        store.store_failure(paused, "late", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
        store.store_result(successor, "in time", DAY)

    def test_fencing_numbers_grow(self, harness: Harness, store: Store) -> None:
        """C20: after a failure, after an expired claim, after a completion that expired and was deleted."""
        if not has_fences(harness):
            assert claim_key(store, KEY).fence == 0
            return
        fences = []
        claim = claim_key(store, KEY)
        fences.append(claim.fence)
        store.store_failure(claim, "no", MINUTE)
        claim = claim_key(store, KEY)
        fences.append(claim.fence)
        harness.advance(timedelta(hours=1))
        claim = claim_key(store, KEY)
        fences.append(claim.fence)
        store.store_result(claim, "done", MINUTE)
        harness.advance(timedelta(hours=1))
        store.cleanup()
        fences.append(claim_key(store, KEY).fence)
        assert all(earlier < later for earlier, later in pairwise(fences)), fences

    def test_claim_returns_last_error_while_it_lives(self, harness: Harness, store: Store) -> None:
        """C20: a consumer recognises a dead letter by it."""
        assert claim_key(store, Key("new")).last_error is None
        store.store_failure(claim_key(store, KEY), "dead letter", timedelta(hours=1))
        claim = claim_key(store, KEY)
        assert claim.last_error == "dead letter"
        store.store_failure(claim, "dead letter", timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        assert claim_key(store, KEY).last_error is None

    # Clock differences: the worker's own clock is wrong.

    @pytest.mark.parametrize("error", [3_600, -3_600])
    def test_clock_of_the_worker_does_not_matter(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        """C20: a worker whose clock is an hour off neither takes a live claim nor leaves one behind for longer."""
        claim = claim_key(store, KEY)
        complete(store, Key("completed"), "done", timedelta(minutes=10))
        set_clock_wrong(monkeypatch, store, error)
        check = store.check(KEY, MINUTE)
        assert isinstance(check, InProgress)
        assert timedelta(0) < check.free_in <= MINUTE
        assert store.check(Key("completed"), MINUTE) == Duplicate(Key("completed"), "done")
        store.store_result(claim, "done", DAY)
