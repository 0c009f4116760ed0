"""C3, C4: each store against a simple model, with any operations in any order; the test controls time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import given, settings

from grantwire_idempotency import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus
from grantwire_idempotency.errors import LeaseLostError
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from layers.idempotency.tests.integration.harness import (
        Harness,
        MemoryHarness,
        PostgresHarness,
        RedisHarness,
        SqliteHarness,
    )

# The clock advances in multiples of ten minutes, and every TTL ends five minutes off such a multiple. So no step ends
# on a boundary, even though the clock of Redis also advances on its own.
MINUTE = timedelta(minutes=1)
VALUES = ("a", "b")
TTLS = st.sampled_from([5, 15, 35, 75])
TEXTS = st.sampled_from(["", "x", "y"])
CLAIM_INDEXES = st.sampled_from([0, 0, 0, 1, 2, 3])

# A step: the name of a method of Comparison, and its arguments.
STEPS = st.one_of(
    st.tuples(st.just("check"), st.sampled_from(VALUES), st.sampled_from([None, 1, 2, 3]), TTLS),
    st.tuples(st.just("check"), st.just("a"), st.sampled_from([1, 2, 3]), TTLS),
    st.tuples(st.just("complete"), CLAIM_INDEXES, st.none() | TEXTS, TTLS),
    st.tuples(st.just("fail"), CLAIM_INDEXES, TEXTS, TTLS),
    st.tuples(st.just("wait"), st.sampled_from([10, 10, 20, 50]), st.booleans()),
)

SETTINGS = settings(derandomize=True, database=None, deadline=None)


@dataclass
class KeyHistory:
    """Every event of one key, with the minute of its expiry."""

    claims: list[tuple[str, int | None, int]] = field(default_factory=list)
    completions: list[tuple[str, int | None, str | None, int]] = field(default_factory=list)
    failures: list[tuple[str, int]] = field(default_factory=list)
    released: set[str] = field(default_factory=set)


class Model:
    """Keeps the whole history and derives each response from the last live event."""

    def __init__(self) -> None:
        self.now = 0
        self.histories: dict[str, KeyHistory] = {}

    def history(self, key: Key) -> KeyHistory:
        """Return the history of a key."""
        return self.histories.setdefault(key.value, KeyHistory())

    def claim(self, key: Key) -> tuple[str, int | None, int] | None:
        """Return the live claim. Only the last claim can be live, unless it has ended."""
        for token, mark, until in self.history(key).claims[-1:]:
            if until > self.now and token not in self.history(key).released:
                return token, mark, until
        return None

    def completion(self, key: Key) -> tuple[str, int | None, str | None, int] | None:
        """Return the last completion while it is live."""
        return next((last for last in self.history(key).completions[-1:] if last[3] > self.now), None)

    def error(self, key: Key) -> str | None:
        """Return the last failure since the last completion while it is live."""
        return next((error for error, until in self.history(key).failures[-1:] if until > self.now), None)

    def is_duplicate(self, key: Key) -> bool:
        """Return whether the key is a duplicate."""
        completion = self.completion(key)
        return completion is not None and (key.mark is None or completion[1] is None or key.mark <= completion[1])

    def is_lost(self, claim: Claim) -> bool:
        """Return whether this claim is lost."""
        other = self.claim(claim.key)
        return self.is_duplicate(claim.key) or (other is not None and other[0] != claim.token)

    def end_claims(self, key: Key) -> None:
        """End every claim: a run that ends has the only live claim, or none is live."""
        self.history(key).released.update(token for token, _, _ in self.history(key).claims)


class Comparison:
    """Executes the same steps on a store and on the model, and compares both after each step."""

    def __init__(self, harness: Harness) -> None:
        harness.reset()
        self.harness = harness
        (self.store,) = harness.stores(1)
        self.model = Model()
        self.claims: list[Claim] = []

    def check(self, value: str, mark: int | None, ttl: int) -> None:
        """Check a key."""
        key, model = Key(value, mark), self.model
        check = self.store.check(key, ttl * MINUTE)
        completion, claim = model.completion(key), model.claim(key)
        if model.is_duplicate(key):
            assert completion is not None
            assert check == Duplicate(key, completion[2])
        elif claim is not None:
            assert isinstance(check, InProgress)
            remaining = (claim[2] - model.now) * MINUTE
            assert remaining - 5 * MINUTE < check.free_in <= remaining
        else:
            assert isinstance(check, Claim)
            assert check.key == key
            assert check.last_error == model.error(key)
            self.claims.append(check)
            model.history(key).claims.append((check.token, mark, model.now + ttl))
        self.compare_state(value)

    def complete(self, index: int, result: str | None, ttl: int) -> None:
        """Complete a key with a recent or an old claim."""
        claim, model = self._pick_claim(index), self.model
        completion = model.completion(claim.key)
        is_repeat = completion is not None and completion[0] == claim.token
        live = model.claim(claim.key)
        is_rejected = (live is None or model.is_lost(claim)) and not is_repeat
        try:
            self.store.store_result(claim, result, ttl * MINUTE)
        except LeaseLostError:
            assert is_rejected
        else:
            assert not is_rejected
            if not is_repeat:
                history = model.history(claim.key)
                history.completions.append((claim.token, claim.key.mark, result, model.now + ttl))
                history.failures.clear()
                model.end_claims(claim.key)
        self.compare_state(claim.key.value)

    def fail(self, index: int, error: str, ttl: int) -> None:
        """Fail a key with a recent or an old claim."""
        claim = self._pick_claim(index)
        self.store.store_failure(claim, error, ttl * MINUTE)
        if not self.model.is_lost(claim):
            self.model.history(claim.key).failures.append((error, self.model.now + ttl))
            self.model.end_claims(claim.key)
        self.compare_state(claim.key.value)

    def _pick_claim(self, index: int) -> Claim:
        """Return a recent or an old claim, or a claim that the store does not know."""
        return self.claims[-1 - index] if index < len(self.claims) else Claim(Key(VALUES[index % 2]))

    def wait(self, minutes: int, cleanup: bool) -> None:
        """Advance the clock and delete expired entries, index must not change any response."""
        self.harness.advance(minutes * MINUTE)
        self.model.now += minutes
        if cleanup:
            self.store.cleanup()
        for value in VALUES:
            self.compare_state(value)

    def compare_state(self, value: str) -> None:
        """Compare the state of a key in both."""
        key, model = Key(value), self.model
        claim, completion, error = model.claim(key), model.completion(key), model.error(key)
        expected = None
        if claim is not None:
            expected = KeyState(KeyStatus.IN_PROGRESS, mark=claim[1])
        elif completion is not None:
            expected = KeyState(KeyStatus.COMPLETED, completion[2], error, completion[1])
        elif error is not None:
            expected = KeyState(KeyStatus.FAILED, error=error)
        assert self.store.get_result(key) == expected


def _compare(harness: Harness, examples: int = 100) -> None:
    @settings(SETTINGS, max_examples=examples)
    @given(st.lists(STEPS, min_size=10, max_size=40))
    def run(steps: list[tuple[Any, ...]]) -> None:
        comparison = Comparison(harness)
        for name, *arguments in steps:
            getattr(comparison, name)(*arguments)

    run()


def test_memory_store_matches_model(memory_harness: MemoryHarness) -> None:
    """For any claims, including stale ones, and any marks and times."""
    _compare(memory_harness)


def test_redis_store_matches_model(redis_harness: RedisHarness) -> None:
    """For any claims, including stale ones, and any marks and times."""
    _compare(redis_harness)


def test_sqlite_store_matches_model(sqlite_harness: SqliteHarness) -> None:
    """For any claims, including stale ones, and any marks and times."""
    _compare(sqlite_harness, 25)  # each step is written to the disk


@newest_postgres
def test_postgres_store_matches_model(postgres_harness: PostgresHarness) -> None:
    """For any claims, including stale ones, and any marks and times."""
    _compare(postgres_harness)
