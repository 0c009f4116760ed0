"""The guarantees of `stores/interface.py` as tests, with lost responses, pauses and clock differences (C3, C4, C20)."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest

from grantwire_idempotency.errors import BadRequestError, LeaseLostError
from grantwire_idempotency.stores.interface import (
    MAX_ERROR_LENGTH,
    MAX_KEY_LENGTH,
    MAX_MARK,
    Claim,
    Duplicate,
    InProgress,
    Key,
    KeyState,
    KeyStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.conformance.harness import Harness
    from grantwire_idempotency.stores.interface import CheckResult, Store

T = TypeVar("T")

MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)
KEY = Key("order:create:abc-123")


def version(mark: int) -> Key:
    """Return the key of one version of the entity."""
    return Key("order:42", mark=mark)


def claim_key(store: Store, key: Key, ttl: timedelta = MINUTE) -> Claim:
    """Claim the key and return the claim."""
    check = store.check(key, ttl)
    assert isinstance(check, Claim)
    assert check.key == key
    return check


def complete(store: Store, key: Key, result: str | None, ttl: timedelta = DAY) -> None:
    """Claim and complete a key."""
    store.store_result(claim_key(store, key), result, ttl)


def has_fences(harness: Harness) -> bool:
    """Return whether the claims of the store have fencing numbers."""
    return getattr(harness, "fences", True)


def outcome(check: CheckResult) -> str:
    """Return the type name of a check result."""
    return type(check).__name__


class StoreConformance:
    """The conformance suite; a subclass, or a fixture, provides a `harness`."""

    @pytest.fixture
    def store(self, harness: Harness) -> Store:
        """Return an empty store."""
        (store,) = harness.stores(1)
        return store

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

    def test_keys_do_not_collide(self, store: Store) -> None:
        """No key can reach the claim, result or error of another key."""
        plain = [
            "x",
            "X",
            "x ",
            "x:",
            ":x",
            "%",
            "*",
            "x*",
            "é",
            "e\u0301",
            "\\",
            "'",
            "{x}",
            "}x",
            "\\}x",
            "x" * MAX_KEY_LENGTH,
        ]
        entries = [
            f"{kind}:{value}" for kind in ("result", "error", "other", "third", "key", "claim") for value in ("x", "")
        ]
        nested = ["key:key:x", "result:result:x", "key:result:x", "result:key:x", "idempotency:x"]
        keys = [Key(value) for value in (*plain, *entries, *nested)]
        claims = {key: claim_key(store, key) for key in keys}
        for key, claim in claims.items():
            store.store_failure(claim, f"failed {key.value}", DAY)
        for key in keys:
            assert store.get_result(key) == KeyState(KeyStatus.FAILED, error=f"failed {key.value}")
            complete(store, key, f"done {key.value}")
        for key in keys:
            assert store.check(key, MINUTE) == Duplicate(key, f"done {key.value}")

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(microseconds=1), timedelta.min])
    def test_ttl_of_zero_is_one_millisecond(self, harness: Harness, store: Store, ttl: timedelta) -> None:
        """The key does not stay blocked, and the server reports no error."""
        claim = claim_key(store, KEY, ttl)
        store.store_failure(claim, "no", ttl)
        store.store_result(claim_key(store, KEY), "done", ttl)
        harness.advance(timedelta(milliseconds=2))
        assert store.get_result(KEY) is None

    def test_largest_ttl_is_limited(self, harness: Harness, store: Store) -> None:
        """No store overflows."""
        claim = claim_key(store, KEY, timedelta.max)
        store.store_failure(claim, "no", timedelta.max)
        complete(store, KEY, "done", timedelta.max)
        harness.advance(timedelta(days=36_499))
        assert store.check(KEY, timedelta.max) == Duplicate(KEY, "done")
        harness.advance(timedelta(days=2))
        claim_key(store, KEY)

    @pytest.mark.parametrize("result", ["a\x00b", "\ud800"])
    def test_unstorable_result_is_rejected_by_every_store(self, store: Store, result: str) -> None:
        """Nothing changes, and the claim can be completed with another result."""
        claim = claim_key(store, KEY)
        with pytest.raises(BadRequestError, match="NUL or lone surrogates"):
            store.store_result(claim, result, DAY)
        store.store_result(claim, None, DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, None)

    def test_any_error_text_can_be_stored(self, store: Store) -> None:
        """Invalid characters are replaced and long texts are cut, so that storing a failure never fails."""
        store.store_failure(claim_key(store, KEY), "a\x00b\udfffc" + "x" * 10_000, DAY)
        state = store.get_result(KEY)
        assert state is not None
        assert state.error == ("a\ufffdb\ufffdc" + "x" * 10_000)[:MAX_ERROR_LENGTH]

    def test_cleanup_does_not_change_check_results(self, harness: Harness, store: Store) -> None:
        """C4: it deletes only expired entries."""
        complete(store, Key("live"), "live", timedelta(hours=9))
        complete(store, Key("expired completion"), "expired", timedelta(hours=1))
        store.store_failure(claim_key(store, Key("failed")), "no", timedelta(hours=9))
        claim_key(store, Key("claimed"), timedelta(hours=9))
        claim_key(store, Key("expired claim"), timedelta(hours=1))
        complete(store, version(2), "two", timedelta(hours=9))
        claim_key(store, version(3), timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        store.cleanup()
        assert store.cleanup() == 0
        assert store.check(Key("live"), MINUTE) == Duplicate(Key("live"), "live")
        assert store.get_result(Key("failed")) == KeyState(KeyStatus.FAILED, error="no")
        assert outcome(store.check(Key("claimed"), MINUTE)) == "InProgress"
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        for key in (Key("expired completion"), Key("expired claim"), version(3)):
            claim_key(store, key)

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

    def test_extension_keeps_an_older_version_completed(self, store: Store) -> None:
        """C20: the completion is not part of the claim."""
        complete(store, version(2), "two")
        claim = claim_key(store, version(3))
        store.extend(claim, timedelta(hours=9))
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        store.store_failure(claim, "no", DAY)
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")

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

    # Clock differences: the worker's own clock is wrong.

    @pytest.mark.parametrize("error", [3_600, -3_600])
    def test_clock_of_the_worker_does_not_matter(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        """C20: a worker whose clock is an hour off neither takes a live claim nor leaves one behind for longer."""
        claim = claim_key(store, KEY)
        complete(store, Key("completed"), "done", timedelta(minutes=10))
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + error)
        check = store.check(KEY, MINUTE)
        assert isinstance(check, InProgress)
        assert timedelta(0) < check.free_in <= MINUTE
        assert store.check(Key("completed"), MINUTE) == Duplicate(Key("completed"), "done")
        store.store_result(claim, "done", DAY)


def run_concurrently(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(count - 1)` in threads that start together, and return their results in order."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait(timeout=30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))
