"""Keys with a mark: an older version never runs after a newer one is completed (C3, C20)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency._internal.stores.interface import (
    MAX_MARK,
    Duplicate,
    InProgress,
    Key,
    KeyState,
    KeyStatus,
)
from grantwire_idempotency.conformance.calls import DAY, KEY, MINUTE, StoreTests, claim_key, complete, outcome, version
from grantwire_idempotency.errors import LeaseLostError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.stores.interface import Store
    from grantwire_idempotency.conformance.harness import Harness


class VersionConformance(StoreTests):
    """Keys with a mark: an older version never runs after a newer one is completed (C3, C20)."""

    def test_older_or_equal_version_is_duplicate(self, store: Store) -> None:
        """001, C3: it gets the result of the version that was processed."""
        complete(store, version(2), "two")
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "two")
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        complete(store, version(5), "five")
        assert store.check(version(4), MINUTE) == Duplicate(version(4), "five")
        assert store.get_result(version(1)) == KeyState(KeyStatus.COMPLETED, "five", mark=5)

    @pytest.mark.parametrize("mark", [0, 1, 1_767_225_600_000_001, MAX_MARK])
    def test_equal_mark_is_duplicate_and_next_mark_is_new(self, store: Store, mark: int) -> None:
        """001: an equal timestamp is a duplicate, one microsecond later is new, up to the largest mark."""
        complete(store, version(mark), "first")
        assert outcome(store.check(version(mark), MINUTE)) == "Duplicate"
        if mark < MAX_MARK:
            complete(store, version(mark + 1), "next")
            assert store.get_result(version(mark)) == KeyState(KeyStatus.COMPLETED, "next", mark=mark + 1)

    def test_marks_are_compared_as_numbers(self, store: Store) -> None:
        """10 comes after 9."""
        complete(store, version(9), "nine")
        complete(store, version(10), "ten")
        assert store.check(version(9), MINUTE) == Duplicate(version(9), "ten")

    def test_completed_version_stays_duplicate_while_later_one_runs(self, store: Store) -> None:
        """Any later version is in progress until the run ends."""
        complete(store, version(2), "two")
        claim = claim_key(store, version(4))
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        for mark in (3, 4, 5):
            assert outcome(store.check(version(mark), MINUTE)) == "InProgress"
        assert store.get_result(version(0)) == KeyState(KeyStatus.IN_PROGRESS, mark=4)
        store.store_result(claim, "four", DAY)
        assert store.check(version(3), MINUTE) == Duplicate(version(3), "four")

    def test_content_hash_belongs_to_its_version(self, store: Store) -> None:
        """C5: another version has other content, which is no conflict; the same version has the same content."""
        complete(store, Key("order:42", mark=2, content_hash="two"), "two")
        expected = {2: "two", 1: "", None: ""}
        checks = {mark: store.check(Key("order:42", mark=mark), MINUTE) for mark in expected}
        assert checks == {mark: Duplicate(Key("order:42", mark=mark), "two", text) for mark, text in expected.items()}
        claim_key(store, Key("order:42", mark=4, content_hash="four"))
        for mark, text in ((3, ""), (4, "four")):
            check = store.check(version(mark), MINUTE)
            assert isinstance(check, InProgress)
            assert check.content_hash == text
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two", "two")

    def test_failure_of_later_version_keeps_older_completion(self, store: Store) -> None:
        """The failed version is new again; the completed one is a duplicate."""
        complete(store, version(2), "two")
        store.store_failure(claim_key(store, version(3)), "no", DAY)
        assert store.get_result(version(3)) == KeyState(KeyStatus.COMPLETED, "two", "no", 2)
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        complete(store, version(3), "three")
        assert store.get_result(version(3)) == KeyState(KeyStatus.COMPLETED, "three", mark=3)

    @pytest.mark.parametrize("error_lives", [timedelta(hours=1), timedelta(hours=9)])
    def test_completion_and_error_expire_independently(
        self, harness: Harness, store: Store, error_lives: timedelta
    ) -> None:
        """The one that expires first does not affect the other."""
        complete(store, version(2), "two", timedelta(hours=5))
        store.store_failure(claim_key(store, version(3)), "no", error_lives)
        harness.advance(timedelta(hours=3))
        error = "no" if error_lives > timedelta(hours=3) else None
        assert store.get_result(version(3)) == KeyState(KeyStatus.COMPLETED, "two", error, 2)
        harness.advance(timedelta(hours=3))
        assert store.get_result(version(3)) == (None if error is None else KeyState(KeyStatus.FAILED, error="no"))

    @pytest.mark.parametrize("record_lives", [timedelta(hours=1), timedelta(hours=9)])
    def test_completion_and_later_claim_expire_independently(
        self, harness: Harness, store: Store, record_lives: timedelta
    ) -> None:
        """The one that expires first does not affect the other, also for a check without a mark."""
        complete(store, version(2), "two", record_lives)
        claim_key(store, version(3), timedelta(hours=5))
        harness.advance(timedelta(hours=3))
        lives = record_lives > timedelta(hours=3)
        expected = "Duplicate" if lives else "InProgress"
        assert outcome(store.check(version(2), MINUTE)) == outcome(store.check(Key("order:42"), MINUTE)) == expected
        assert outcome(store.check(version(4), MINUTE)) == "InProgress"
        harness.advance(timedelta(hours=3))
        assert outcome(store.check(Key("order:42"), MINUTE)) == ("Duplicate" if lives else "Claim")

    @pytest.mark.parametrize("record_lives", [timedelta(hours=1), timedelta(hours=9)])
    def test_released_claim_does_not_change_ttl_of_completion(
        self, harness: Harness, store: Store, record_lives: timedelta
    ) -> None:
        """Neither a longer nor a shorter claim does."""
        complete(store, version(2), "two", record_lives)
        store.store_failure(claim_key(store, version(3), timedelta(hours=5)), "no", MINUTE)
        harness.advance(record_lives - MINUTE)
        assert store.check(Key("order:42"), MINUTE) == Duplicate(Key("order:42"), "two")
        harness.advance(2 * MINUTE)
        assert store.get_result(version(2)) is None
        claim_key(store, version(1))

    def test_late_version_cannot_be_completed(self, harness: Harness, store: Store) -> None:
        """C3: neither an older version nor a newer one than the completed version."""
        late = []
        for mark in (1, 3):
            late.append(claim_key(store, version(mark)))
            harness.advance(timedelta(hours=1))
        complete(store, version(2), "two")
        for claim in late:
            with pytest.raises(LeaseLostError):
                store.store_result(claim, "late", DAY)
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        complete(store, version(3), "three")

    def test_completion_without_mark_covers_every_key(self, store: Store) -> None:
        """Only two marks can be compared."""
        bare = Key("order:42")
        complete(store, version(2), "two")
        assert store.check(bare, MINUTE) == Duplicate(bare, "two")
        other = Key("order:43")
        complete(store, other, "bare")
        assert store.check(Key("order:43", mark=9), MINUTE) == Duplicate(Key("order:43", mark=9), "bare")
        claim_key(store, Key("order:44"))
        assert outcome(store.check(Key("order:44", mark=9), MINUTE)) == "InProgress"
        claim_key(store, Key("order:45", mark=9))
        assert outcome(store.check(Key("order:45"), MINUTE)) == "InProgress"

    def test_extension_keeps_an_older_version_completed(self, store: Store) -> None:
        """C20: the completion is not part of the claim."""
        complete(store, version(2), "two")
        claim = claim_key(store, version(3))
        store.extend(claim, timedelta(hours=9))
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        store.store_failure(claim, "no", DAY)
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")

    def test_version_outlives_its_result(self, harness: Harness, store: Store) -> None:
        """C20: an older version stays a duplicate for `order_ttl`; a key without a mark only for `ttl`."""
        store.store_result(claim_key(store, version(2)), "two", timedelta(hours=1), timedelta(hours=9))
        store.store_result(claim_key(store, KEY), "done", timedelta(hours=1), timedelta(hours=9))
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        harness.advance(timedelta(hours=2))
        assert store.check(version(1), MINUTE) == Duplicate(version(1), None)
        assert store.get_result(version(2)) == KeyState(KeyStatus.COMPLETED, None, mark=2)
        claim_key(store, KEY)
        store.store_failure(claim_key(store, version(3)), "no", MINUTE)
        harness.advance(timedelta(hours=9))
        claim_key(store, version(1))

    def test_result_is_kept_for_its_ttl_if_order_ttl_is_shorter(self, harness: Harness, store: Store) -> None:
        """C20: `order_ttl` only makes the completion longer."""
        store.store_result(claim_key(store, version(2)), "two", timedelta(hours=9), timedelta(hours=1))
        harness.advance(timedelta(hours=8))
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "two")
        assert store.get_result(version(2)) == KeyState(KeyStatus.COMPLETED, "two", mark=2)
        harness.advance(timedelta(hours=2))
        claim_key(store, version(1))
