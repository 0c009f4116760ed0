"""Claims, completions and failures: what each call changes, and when each entry expires (C4)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency._internal.stores.interface import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus
from grantwire_idempotency.conformance.calls import DAY, KEY, MINUTE, StoreTests, claim_key, complete, outcome, version
from grantwire_idempotency.errors import LeaseLostError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.stores.interface import Store
    from grantwire_idempotency.conformance.harness import Harness


class EntryConformance(StoreTests):
    """Claims, completions and failures: what each call changes, and when each entry expires (C4)."""

    def test_duplicate_gets_stored_result(self, store: Store) -> None:
        """C4: the second check returns the result of the first run and changes nothing."""
        complete(store, KEY, '{"total": 1}')
        for _ in range(2):
            assert store.check(KEY, MINUTE) == Duplicate(KEY, '{"total": 1}')
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, '{"total": 1}')

    @pytest.mark.parametrize(
        "result",
        [None, "", "null", "ä\n\u2028'\"{}%s\\x00", "x" * 100_000],
        ids=["none", "empty", "null", "odd", "long"],
    )
    def test_result_is_returned_unchanged(self, store: Store, result: str | None) -> None:
        """None is different from an empty result."""
        complete(store, KEY, result)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, result)
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, result)

    def test_content_hash_is_returned_while_the_run_works_and_afterwards(self, store: Store) -> None:
        """C5: it is that of the run, not that of the check, and a run that has failed leaves none."""
        one, two, bare = Key("k", content_hash="one"), Key("k", content_hash="2.two_-"), Key("k")
        claim = claim_key(store, one)
        for key in (one, two, bare):
            check = store.check(key, MINUTE)
            assert isinstance(check, InProgress)
            assert check.content_hash == "one"
        assert store.get_result(bare) == KeyState(KeyStatus.IN_PROGRESS, content_hash="one")
        store.store_failure(claim, "no", DAY)
        complete(store, two, "done")
        for key in (one, two, bare):
            assert store.check(key, MINUTE) == Duplicate(key, "done", "2.two_-")
        assert store.get_result(bare) == KeyState(KeyStatus.COMPLETED, "done", content_hash="2.two_-")

    def test_claimed_key_is_in_progress_for_others(self, harness: Harness, store: Store) -> None:
        """The check result says how long at most."""
        claim_key(store, KEY, timedelta(minutes=30))
        harness.advance(timedelta(minutes=10))
        check = store.check(KEY, MINUTE)
        assert isinstance(check, InProgress)
        # One minute of tolerance for Redis, whose clock advances during the test.
        assert timedelta(minutes=19) < check.free_in <= timedelta(minutes=20)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)

    def test_unknown_key_has_no_state(self, store: Store) -> None:
        """get_result does not claim a key."""
        assert store.get_result(KEY) is None
        claim_key(store, KEY)

    def test_key_is_new_after_ttl(self, harness: Harness, store: Store) -> None:
        """004: after its TTL a key can be used again; every job has its own TTL."""
        short, long = Key("short"), Key("long")
        complete(store, short, "1", timedelta(hours=1))
        complete(store, long, "1", timedelta(hours=24))
        harness.advance(timedelta(minutes=59))
        assert store.check(short, MINUTE) == Duplicate(short, "1")
        harness.advance(timedelta(minutes=2))
        assert store.get_result(short) is None
        complete(store, short, "2")
        assert store.check(short, MINUTE) == Duplicate(short, "2")
        assert store.check(long, MINUTE) == Duplicate(long, "1")

    def test_ttl_of_completion_starts_at_completion(self, harness: Harness, store: Store) -> None:
        """The length of the claim does not matter."""
        claim = claim_key(store, KEY, timedelta(days=30))
        store.store_result(claim, "done", timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        assert isinstance(store.check(KEY, MINUTE), Claim)

    def test_failure_releases_key(self, harness: Harness, store: Store) -> None:
        """C5: a retry runs immediately; the error is kept for its TTL."""
        store.store_failure(claim_key(store, KEY), "ValueError: no", timedelta(hours=1))
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="ValueError: no")
        claim = claim_key(store, KEY)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
        store.store_failure(claim, "", timedelta(hours=1))
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="")
        harness.advance(timedelta(hours=2))
        assert store.get_result(KEY) is None

    def test_success_deletes_earlier_error(self, harness: Harness, store: Store) -> None:
        """Also if the error would have lived longer than the completion."""
        store.store_failure(claim_key(store, KEY), "no", timedelta(hours=9))
        complete(store, KEY, "yes", timedelta(hours=1))
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, "yes")
        harness.advance(timedelta(hours=2))
        assert store.get_result(KEY) is None

    def test_expired_claim_frees_key(self, harness: Harness, store: Store) -> None:
        """A worker that died blocks its key no longer than its claim."""
        claim_key(store, KEY, timedelta(minutes=15))
        harness.advance(timedelta(minutes=14))
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=2))
        assert store.get_result(KEY) is None
        claim_key(store, KEY)

    @pytest.mark.parametrize("key", [KEY, version(3)], ids=["plain", "version"])
    def test_expired_claim_cannot_be_completed(self, harness: Harness, store: Store, key: Key) -> None:
        """C20: also if no other run has claimed the key, with and without its entry; an extended claim can."""
        for is_deleted in (False, True):
            late = claim_key(store, key)
            harness.advance(timedelta(hours=1))
            if is_deleted:
                store.cleanup()
            with pytest.raises(LeaseLostError):
                store.store_result(late, "late", DAY)
            assert store.get_result(key) is None
        claim = claim_key(store, key)
        store.extend(claim, timedelta(hours=2))
        harness.advance(timedelta(hours=1))
        store.store_result(claim, "in time", DAY)
        assert store.check(key, MINUTE) == Duplicate(key, "in time")

    def test_expired_claim_can_fail_if_not_lost(self, harness: Harness, store: Store) -> None:
        """The error is stored, and the key remains free."""
        late = claim_key(store, KEY)
        harness.advance(timedelta(hours=1))
        store.cleanup()
        store.store_failure(late, "too slow", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="too slow")
        claim_key(store, KEY)

    def test_lost_claim_cannot_be_completed(self, harness: Harness, store: Store) -> None:
        """Neither while the other run works nor after it has finished; nothing changes."""
        late = claim_key(store, KEY)
        harness.advance(timedelta(hours=1))
        other = claim_key(store, KEY)
        with pytest.raises(LeaseLostError):
            store.store_result(late, "late", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
        store.store_result(other, "in time", DAY)
        with pytest.raises(LeaseLostError):
            store.store_result(late, "late", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "in time")

    def test_failure_of_lost_claim_changes_nothing(self, harness: Harness, store: Store) -> None:
        """The claim and the result of the other run remain."""
        late = claim_key(store, KEY)
        harness.advance(timedelta(hours=1))
        other = claim_key(store, KEY)
        store.store_failure(late, "late", DAY)
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        store.store_result(other, "in time", DAY)
        store.store_failure(late, "late", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, "in time")

    def test_expired_claim_cannot_be_completed_after_successor_failed(self, harness: Harness, store: Store) -> None:
        """C20: the successor has released the key, so no claim and no completion shows that there was one."""
        paused = claim_key(store, KEY)
        harness.advance(timedelta(hours=1))
        store.store_failure(claim_key(store, KEY), "no", DAY)
        with pytest.raises(LeaseLostError):
            store.store_result(paused, "late", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
        assert claim_key(store, KEY).last_error == "no"

    def test_second_completion_of_same_claim_is_ignored(self, store: Store) -> None:
        """A caller can repeat it after a lost response, even while a run with a later mark works."""
        claim = claim_key(store, version(1))
        store.store_result(claim, "first", DAY)
        store.store_result(claim, "again", DAY)
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "first")
        claim_key(store, version(2))
        store.store_result(claim, "again", DAY)
        store.store_failure(claim, "again", DAY)
        assert outcome(store.check(version(2), MINUTE)) == "InProgress"
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "first")

    def test_repeated_completion_fails_after_ttl(self, harness: Harness, store: Store) -> None:
        """After the TTL of the completion, another run may have the key."""
        claim = claim_key(store, KEY)
        store.store_result(claim, "first", timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        other = claim_key(store, KEY)
        with pytest.raises(LeaseLostError):
            store.store_result(claim, "again", DAY)
        store.store_result(other, "other", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "other")

    def test_second_failure_does_not_release_next_claim(self, store: Store) -> None:
        """Another run has claimed the key in between."""
        claim = claim_key(store, KEY)
        store.store_failure(claim, "no", DAY)
        claim_key(store, KEY)
        store.store_failure(claim, "no", DAY)
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
