"""C3, C4: what every store promises (`stores/interface.py`), asked of each of them; time is an input."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

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
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from grantwire_idempotency.stores.interface import CheckResult, Store
    from tests.integration.idempotency.harness import Harness, MemoryHarness, PostgresHarness, RedisHarness

MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)
KEY = Key("order:create:abc-123")


def version(mark: int) -> Key:
    """One version of the one entity that these tests know."""
    return Key("order:42", mark=mark)


def claimed(store: Store, key: Key, ttl: timedelta = MINUTE) -> Claim:
    """A claim, which must be granted."""
    check = store.check(key, ttl)
    assert isinstance(check, Claim)
    assert check.key == key
    return check


def complete(store: Store, key: Key, result: str | None, ttl: timedelta = DAY) -> None:
    """Claim and complete."""
    store.store_result(claimed(store, key), result, ttl)


def outcome(check: CheckResult) -> str:
    """What a check came to."""
    return type(check).__name__


class Conformance:
    """The suite; each subclass has a harness of its own."""

    @pytest.fixture
    def store(self, harness: Harness) -> Store:
        """A store without keys."""
        (store,) = harness.stores(1)
        return store

    def test_a_duplicate_is_skipped_with_the_first_result(self, store: Store) -> None:
        """C4: the second check finds what the first run stored, and changes nothing."""
        complete(store, KEY, '{"total": 1}')
        for _ in range(2):
            assert store.check(KEY, MINUTE) == Duplicate(KEY, '{"total": 1}')
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, '{"total": 1}')

    @pytest.mark.parametrize(
        "result",
        [None, "", "null", "ä\n\u2028'\"{}%s\\x00", "x" * 100_000],
        ids=["none", "empty", "null", "odd", "long"],
    )
    def test_a_result_comes_back_as_it_was(self, store: Store, result: str | None) -> None:
        """No result is not the same as an empty one."""
        complete(store, KEY, result)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, result)
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, result)

    def test_a_key_in_progress_is_nobody_elses(self, harness: Harness, store: Store) -> None:
        """Whoever comes meanwhile is told for how long at most."""
        claimed(store, KEY, timedelta(minutes=30))
        harness.advance(timedelta(minutes=10))
        check = store.check(KEY, MINUTE)
        assert isinstance(check, InProgress)
        # The last minute is for Redis, whose clock ticks while this test runs.
        assert timedelta(minutes=19) < check.free_in <= timedelta(minutes=20)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)

    def test_what_nobody_knows_is_nothing(self, store: Store) -> None:
        """To look does not claim."""
        assert store.get_result(KEY) is None
        claimed(store, KEY)

    def test_ttl_expiry_makes_the_key_new(self, harness: Harness, store: Store) -> None:
        """004: after its time the same key can be used again; every job has its own time."""
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

    def test_the_time_of_a_record_begins_with_its_completion(self, harness: Harness, store: Store) -> None:
        """However long the claim was."""
        claim = claimed(store, KEY, timedelta(days=30))
        store.store_result(claim, "done", timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        assert isinstance(store.check(KEY, MINUTE), Claim)

    def test_a_failed_run_releases_the_key(self, harness: Harness, store: Store) -> None:
        """C5: so that a retry runs at once; the error can be looked up for its time."""
        store.store_failure(claimed(store, KEY), "ValueError: no", timedelta(hours=1))
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="ValueError: no")
        claim = claimed(store, KEY)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
        store.store_failure(claim, "", timedelta(hours=1))
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="")
        harness.advance(timedelta(hours=2))
        assert store.get_result(KEY) is None

    def test_a_success_after_a_failure_leaves_no_error(self, harness: Harness, store: Store) -> None:
        """Also when the record has expired and the failure would not have."""
        store.store_failure(claimed(store, KEY), "no", timedelta(hours=9))
        complete(store, KEY, "yes", timedelta(hours=1))
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, "yes")
        harness.advance(timedelta(hours=2))
        assert store.get_result(KEY) is None

    def test_a_dead_claim_frees_the_key(self, harness: Harness, store: Store) -> None:
        """A worker that died does not block a key for longer than its claim."""
        claimed(store, KEY, timedelta(minutes=15))
        harness.advance(timedelta(minutes=14))
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=2))
        assert store.get_result(KEY) is None
        claimed(store, KEY)

    def test_a_claim_past_its_time_still_counts_while_nobody_took_the_key(self, harness: Harness, store: Store) -> None:
        """The work is done: better to keep that than to do it again."""
        late = claimed(store, KEY)
        harness.advance(timedelta(hours=1))
        store.cleanup()
        store.store_result(late, "late", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "late")

    def test_a_failure_past_its_time_is_noted_while_nobody_took_the_key(self, harness: Harness, store: Store) -> None:
        """The error is worth knowing, and the key is free as it was."""
        late = claimed(store, KEY)
        harness.advance(timedelta(hours=1))
        store.cleanup()
        store.store_failure(late, "too slow", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="too slow")
        claimed(store, KEY)

    def test_late_completion_after_take_over_is_refused_and_changes_nothing(
        self, harness: Harness, store: Store
    ) -> None:
        """While the other one works, and when it has finished."""
        late = claimed(store, KEY)
        harness.advance(timedelta(hours=1))
        other = claimed(store, KEY)
        with pytest.raises(LeaseLostError):
            store.store_result(late, "late", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
        store.store_result(other, "in time", DAY)
        with pytest.raises(LeaseLostError):
            store.store_result(late, "late", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "in time")

    def test_late_failure_after_take_over_changes_nothing(self, harness: Harness, store: Store) -> None:
        """It neither takes the claim from the other one nor spoils its result."""
        late = claimed(store, KEY)
        harness.advance(timedelta(hours=1))
        other = claimed(store, KEY)
        store.store_failure(late, "late", DAY)
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        store.store_result(other, "in time", DAY)
        store.store_failure(late, "late", DAY)
        assert store.get_result(KEY) == KeyState(KeyStatus.COMPLETED, "in time")

    def test_of_two_late_ones_the_first_to_finish_wins(self, harness: Harness, store: Store) -> None:
        """Both claims are dead, so nobody has the key; then somebody has completed it."""
        first = claimed(store, KEY)
        harness.advance(timedelta(hours=1))
        second = claimed(store, KEY)
        harness.advance(timedelta(hours=1))
        store.store_result(first, "first", DAY)
        with pytest.raises(LeaseLostError):
            store.store_result(second, "second", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "first")

    def test_to_complete_twice_is_to_complete_once(self, store: Store) -> None:
        """A caller that does not know whether its result arrived sends it again, even while a later mark is at work."""
        claim = claimed(store, version(1))
        store.store_result(claim, "first", DAY)
        store.store_result(claim, "again", DAY)
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "first")
        claimed(store, version(2))
        store.store_result(claim, "again", DAY)
        store.store_failure(claim, "again", DAY)
        assert outcome(store.check(version(2), MINUTE)) == "InProgress"
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "first")

    def test_to_complete_again_counts_only_while_the_record_does(self, harness: Harness, store: Store) -> None:
        """After that somebody else may have taken the key."""
        claim = claimed(store, KEY)
        store.store_result(claim, "first", timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        other = claimed(store, KEY)
        with pytest.raises(LeaseLostError):
            store.store_result(claim, "again", DAY)
        store.store_result(other, "other", DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "other")

    def test_to_fail_twice_does_not_release_the_next_claim(self, store: Store) -> None:
        """The second one finds somebody else at work."""
        claim = claimed(store, KEY)
        store.store_failure(claim, "no", DAY)
        claimed(store, KEY)
        store.store_failure(claim, "no", DAY)
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"

    def test_version_2_is_processed_and_version_1_is_skipped(self, store: Store) -> None:
        """001, C3: older or equal is skipped, with the result of the version that was processed."""
        complete(store, version(2), "two")
        assert store.check(version(1), MINUTE) == Duplicate(version(1), "two")
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        complete(store, version(5), "five")
        assert store.check(version(4), MINUTE) == Duplicate(version(4), "five")
        assert store.get_result(version(1)) == KeyState(KeyStatus.COMPLETED, "five", mark=5)

    @pytest.mark.parametrize("mark", [0, 1, 1_767_225_600_000_001, MAX_MARK])
    def test_an_equal_mark_is_skipped_and_the_next_is_not(self, store: Store, mark: int) -> None:
        """001: an equal timestamp is a duplicate, one microsecond later is not; exact up to the largest."""
        complete(store, version(mark), "first")
        assert outcome(store.check(version(mark), MINUTE)) == "Duplicate"
        if mark < MAX_MARK:
            complete(store, version(mark + 1), "next")
            assert store.get_result(version(mark)) == KeyState(KeyStatus.COMPLETED, "next", mark=mark + 1)

    def test_marks_are_numbers(self, store: Store) -> None:
        """Not text: 10 comes after 9."""
        complete(store, version(9), "nine")
        complete(store, version(10), "ten")
        assert store.check(version(9), MINUTE) == Duplicate(version(9), "ten")

    def test_while_a_later_version_is_in_progress(self, store: Store) -> None:
        """The older completed one keeps its result; whatever is later has to wait, whichever it is."""
        complete(store, version(2), "two")
        claim = claimed(store, version(4))
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        for mark in (3, 4, 5):
            assert outcome(store.check(version(mark), MINUTE)) == "InProgress"
        assert store.get_result(version(0)) == KeyState(KeyStatus.IN_PROGRESS, mark=4)
        store.store_result(claim, "four", DAY)
        assert store.check(version(3), MINUTE) == Duplicate(version(3), "four")

    def test_a_later_version_that_fails_leaves_the_older_one_completed(self, store: Store) -> None:
        """The failed one is new again, the completed one is not."""
        complete(store, version(2), "two")
        store.store_failure(claimed(store, version(3)), "no", DAY)
        assert store.get_result(version(3)) == KeyState(KeyStatus.COMPLETED, "two", "no", 2)
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        complete(store, version(3), "three")
        assert store.get_result(version(3)) == KeyState(KeyStatus.COMPLETED, "three", mark=3)

    @pytest.mark.parametrize("error_lives", [timedelta(hours=1), timedelta(hours=9)])
    def test_a_record_and_an_error_each_live_for_their_time(
        self, harness: Harness, store: Store, error_lives: timedelta
    ) -> None:
        """Whichever ends first, the other stays."""
        complete(store, version(2), "two", timedelta(hours=5))
        store.store_failure(claimed(store, version(3)), "no", error_lives)
        harness.advance(timedelta(hours=3))
        error = "no" if error_lives > timedelta(hours=3) else None
        assert store.get_result(version(3)) == KeyState(KeyStatus.COMPLETED, "two", error, 2)
        harness.advance(timedelta(hours=3))
        assert store.get_result(version(3)) == (None if error is None else KeyState(KeyStatus.FAILED, error="no"))

    @pytest.mark.parametrize("record_lives", [timedelta(hours=1), timedelta(hours=9)])
    def test_a_record_and_a_later_claim_each_live_for_their_time(
        self, harness: Harness, store: Store, record_lives: timedelta
    ) -> None:
        """Whichever ends first, the other stays; also for a check without a mark."""
        complete(store, version(2), "two", record_lives)
        claimed(store, version(3), timedelta(hours=5))
        harness.advance(timedelta(hours=3))
        lives = record_lives > timedelta(hours=3)
        expected = "Duplicate" if lives else "InProgress"
        assert outcome(store.check(version(2), MINUTE)) == outcome(store.check(Key("order:42"), MINUTE)) == expected
        assert outcome(store.check(version(4), MINUTE)) == "InProgress"
        harness.advance(timedelta(hours=3))
        assert outcome(store.check(Key("order:42"), MINUTE)) == ("Duplicate" if lives else "Claim")

    @pytest.mark.parametrize("record_lives", [timedelta(hours=1), timedelta(hours=9)])
    def test_a_later_claim_that_ends_leaves_the_record_its_time(
        self, harness: Harness, store: Store, record_lives: timedelta
    ) -> None:
        """A claim that was given back, longer than the record or shorter, neither lengthens nor shortens it."""
        complete(store, version(2), "two", record_lives)
        store.store_failure(claimed(store, version(3), timedelta(hours=5)), "no", MINUTE)
        harness.advance(record_lives - MINUTE)
        assert store.check(Key("order:42"), MINUTE) == Duplicate(Key("order:42"), "two")
        harness.advance(2 * MINUTE)
        assert store.get_result(version(2)) is None
        claimed(store, version(1))

    def test_a_late_version_counts_unless_it_was_overtaken(self, harness: Harness, store: Store) -> None:
        """C3: a late 3 after a completed 2 is fine, a late 2 after a completed 3 is refused."""
        three = claimed(store, version(3))
        harness.advance(timedelta(hours=1))
        two = claimed(store, version(2))
        harness.advance(timedelta(hours=1))
        complete(store, version(1), "one")
        store.store_result(three, "three", DAY)
        with pytest.raises(LeaseLostError):
            store.store_result(two, "two", DAY)
        assert store.check(version(3), MINUTE) == Duplicate(version(3), "three")

    def test_without_a_mark_on_either_side_completed_is_completed(self, store: Store) -> None:
        """Order is only between marks."""
        bare = Key("order:42")
        complete(store, version(2), "two")
        assert store.check(bare, MINUTE) == Duplicate(bare, "two")
        other = Key("order:43")
        complete(store, other, "bare")
        assert store.check(Key("order:43", mark=9), MINUTE) == Duplicate(Key("order:43", mark=9), "bare")
        claimed(store, Key("order:44"))
        assert outcome(store.check(Key("order:44", mark=9), MINUTE)) == "InProgress"
        claimed(store, Key("order:45", mark=9))
        assert outcome(store.check(Key("order:45"), MINUTE)) == "InProgress"

    def test_keys_do_not_meet(self, store: Store) -> None:
        """No spelling of a key reaches another key's claim, result or error."""
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
        entries = [f"{kind}:{value}" for kind in ("result", "error", "other", "key", "claim") for value in ("x", "")]
        nested = ["key:key:x", "result:result:x", "key:result:x", "result:key:x", "idempotency:x"]
        keys = [Key(value) for value in (*plain, *entries, *nested)]
        claims = {key: claimed(store, key) for key in keys}
        for key, claim in claims.items():
            store.store_failure(claim, f"failed {key.value}", DAY)
        for key in keys:
            assert store.get_result(key) == KeyState(KeyStatus.FAILED, error=f"failed {key.value}")
            complete(store, key, f"done {key.value}")
        for key in keys:
            assert store.check(key, MINUTE) == Duplicate(key, f"done {key.value}")

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(microseconds=1), timedelta.min])
    def test_no_time_at_all_is_a_millisecond(self, harness: Harness, store: Store, ttl: timedelta) -> None:
        """A key is never stuck, and never an error of the server's."""
        claim = claimed(store, KEY, ttl)
        store.store_failure(claim, "no", ttl)
        store.store_result(claimed(store, KEY), "done", ttl)
        harness.advance(timedelta(milliseconds=2))
        assert store.get_result(KEY) is None

    def test_for_ever_is_a_hundred_years(self, harness: Harness, store: Store) -> None:
        """No store overflows."""
        claim = claimed(store, KEY, timedelta.max)
        store.store_failure(claim, "no", timedelta.max)
        complete(store, KEY, "done", timedelta.max)
        harness.advance(timedelta(days=36_499))
        assert store.check(KEY, timedelta.max) == Duplicate(KEY, "done")
        harness.advance(timedelta(days=2))
        claimed(store, KEY)

    @pytest.mark.parametrize("result", ["a\x00b", "\ud800"])
    def test_a_result_that_some_store_cannot_hold_is_refused_by_all(self, store: Store, result: str) -> None:
        """Nothing is changed: the claim is there to be completed otherwise."""
        claim = claimed(store, KEY)
        with pytest.raises(BadRequestError, match="NUL or lone surrogates"):
            store.store_result(claim, result, DAY)
        store.store_result(claim, None, DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, None)

    def test_any_error_can_be_noted(self, store: Store) -> None:
        """What cannot be held is replaced, what is too long is cut: a failure must never fail to be noted."""
        store.store_failure(claimed(store, KEY), "a\x00b\udfffc" + "x" * 10_000, DAY)
        record = store.get_result(KEY)
        assert record is not None
        assert record.error == ("a\ufffdb\ufffdc" + "x" * 10_000)[:MAX_ERROR_LENGTH]

    def test_cleanup_takes_nothing_that_counts(self, harness: Harness, store: Store) -> None:
        """C4: whatever it deletes, every later check is what it would have been."""
        complete(store, Key("kept"), "kept", timedelta(hours=9))
        complete(store, Key("gone"), "gone", timedelta(hours=1))
        store.store_failure(claimed(store, Key("failed")), "no", timedelta(hours=9))
        claimed(store, Key("claimed"), timedelta(hours=9))
        claimed(store, Key("dead"), timedelta(hours=1))
        complete(store, version(2), "two", timedelta(hours=9))
        claimed(store, version(3), timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        store.cleanup()
        assert store.cleanup() == 0
        assert store.check(Key("kept"), MINUTE) == Duplicate(Key("kept"), "kept")
        assert store.get_result(Key("failed")) == KeyState(KeyStatus.FAILED, error="no")
        assert outcome(store.check(Key("claimed"), MINUTE)) == "InProgress"
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        for key in (Key("gone"), Key("dead"), version(3)):
            claimed(store, key)

    @pytest.mark.parametrize(
        "before", ["nothing", "a dead claim", "a failure", "an older version", "an expired record"]
    )
    def test_of_many_at_once_exactly_one_gets_the_key(self, harness: Harness, store: Store, before: str) -> None:
        """C4: whatever there was before; threads with connections of their own."""
        count = 8
        stores = harness.stores(count)
        for round_ in range(5):
            entity = f"round {round_}"
            if before == "a dead claim":
                claimed(store, Key(entity))
            elif before == "a failure":
                store.store_failure(claimed(store, Key(entity)), "no", DAY)
            elif before == "an older version":
                complete(store, Key(entity, mark=1), "one")
            elif before == "an expired record":
                complete(store, Key(entity, mark=9), "old", MINUTE)
            harness.advance(timedelta(hours=1))
            key = Key(entity, mark=2 if "version" in before or "record" in before else None)

            def check(number: int, key: Key = key) -> CheckResult:
                return stores[number].check(key, MINUTE)

            checks = at_once(count, check)
            assert sorted(map(outcome, checks)) == ["Claim"] + ["InProgress"] * (count - 1)

    def test_versions_at_once_end_at_the_last_and_run_no_stale_one(self, harness: Harness, store: Store) -> None:
        """001, C3: versions 2 to 5 at once, in any order; whoever finds another at work comes again."""
        marks = [2, 3, 4, 5]
        stores = harness.stores(len(marks))
        for round_ in range(8):
            entity = f"round {round_}"
            order = random.Random(round_).sample(marks, len(marks))  # noqa: S311
            ran: list[int] = []

            def consume(number: int, entity: str = entity, order: list[int] = order, ran: list[int] = ran) -> None:
                key = Key(entity, mark=order[number])
                check = stores[number].check(key, DAY)
                while isinstance(check, InProgress):
                    check = stores[number].check(key, DAY)
                if isinstance(check, Claim):
                    ran.append(order[number])
                    stores[number].store_result(check, str(order[number]), DAY)

            at_once(len(marks), consume)
            assert ran[-1] == 5
            assert all(earlier < later for earlier, later in pairwise(ran)), f"a stale version ran: {ran}"
            assert store.get_result(Key(entity)) == KeyState(KeyStatus.COMPLETED, "5", mark=5)

    def test_a_late_result_and_a_take_over_at_once(self, harness: Harness, store: Store) -> None:
        """Either the late one is in time and the other finds a duplicate, or it is refused; never do both go on."""
        _, late_store, other_store = harness.stores(3)
        for round_ in range(12):
            key = Key(f"round {round_}")
            late = claimed(store, key)
            harness.advance(timedelta(hours=1))

            def act(number: int, key: Key = key, late: Claim = late) -> str:
                if number:
                    return outcome(other_store.check(key, MINUTE))
                try:
                    late_store.store_result(late, "late", DAY)
                except LeaseLostError:
                    return "refused"
                return "completed"

            assert at_once(2, act) in (["completed", "Duplicate"], ["refused", "Claim"])


class SharedConformance(Conformance):
    """What only a store that processes share can promise."""

    def test_a_process_that_is_killed_leaves_its_claim_for_as_long_as_it_was_made(
        self, harness: Harness, store: Store
    ) -> None:
        """C4: SIGKILL while it holds the claim; the key is in progress, and free when the claim's time is up."""
        command = [
            sys.executable,
            "-m",
            "tests.support.workers.idempotency_claim",
            harness.name,
            harness.url,
            KEY.value,
            "600",
        ]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH}
        with subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "Claim\n"
            worker.kill()
            assert worker.wait() == -signal.SIGKILL
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=9))
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=2))
        claimed(store, KEY)


class TestMemoryStore(Conformance):
    """The store in memory."""

    @pytest.fixture
    def harness(self, memory_harness: MemoryHarness) -> Harness:
        """Its clock is a number."""
        return memory_harness


class TestRedisStore(SharedConformance):
    """The store in Redis."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """On the Valkey of all tests."""
        return redis_harness


class TestRedisStoreInACluster(Conformance):
    """The same in Redis Cluster, where all entries of a key must be on one node."""

    @pytest.fixture
    def harness(self, cluster_harness: RedisHarness) -> Harness:
        """On a Valkey that is a cluster by itself."""
        return cluster_harness


class TestPostgresStore(SharedConformance):
    """The store in PostgreSQL, on each version."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """In one database for all of these tests."""
        return postgres_harness
