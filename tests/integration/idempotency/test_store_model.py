"""C3, C4: each store against a simple model of what it promises: any operations in any order, with time as an input."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import given, settings

from grantwire_idempotency.errors import LeaseLostError
from grantwire_idempotency.stores.interface import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus

if TYPE_CHECKING:
    from tests.integration.idempotency.harness import Harness, MemoryHarness, PostgresHarness, RedisHarness

# Time goes in steps of ten minutes, and every life ends five minutes past one: so no step ends on a boundary, and the
# clock of Redis, which ticks by itself, has minutes to spare.
MINUTE = timedelta(minutes=1)
VALUES = ("a", "b")
LIVES = st.sampled_from([5, 15, 35, 75])
TEXTS = st.sampled_from(["", "x", "y"])
HOLDERS = st.sampled_from([0, 0, 0, 1, 2, 3])

# What can happen: the name of a method of Comparison, and its arguments.
STEPS = st.one_of(
    st.tuples(st.just("check"), st.sampled_from(VALUES), st.sampled_from([None, 1, 2, 3]), LIVES),
    st.tuples(st.just("check"), st.just("a"), st.sampled_from([1, 2, 3]), LIVES),
    st.tuples(st.just("complete"), HOLDERS, st.none() | TEXTS, LIVES),
    st.tuples(st.just("fail"), HOLDERS, TEXTS, LIVES),
    st.tuples(st.just("wait"), st.sampled_from([10, 10, 20, 50]), st.booleans()),
)

SETTINGS = settings(max_examples=100, derandomize=True, database=None, deadline=None)


@dataclass
class Known:
    """All that was ever said of one key, with the minute until which it counts."""

    claims: list[tuple[str, int | None, int]] = field(default_factory=list)
    completions: list[tuple[str, int | None, str | None, int]] = field(default_factory=list)
    failures: list[tuple[str, int]] = field(default_factory=list)
    released: set[str] = field(default_factory=set)


class Model:
    """Remembers what happened, forgets nothing, and answers from the last that still counts."""

    def __init__(self) -> None:
        self.now = 0
        self.known: dict[str, Known] = {}

    def of(self, key: Key) -> Known:
        """What is known of a key."""
        return self.known.setdefault(key.value, Known())

    def claim(self, key: Key) -> tuple[str, int | None, int] | None:
        """The claim that counts: only the last one can, unless it was given back or has led to something."""
        for token, mark, until in self.of(key).claims[-1:]:
            if until > self.now and token not in self.of(key).released:
                return token, mark, until
        return None

    def completion(self, key: Key) -> tuple[str, int | None, str | None, int] | None:
        """The last completion, while it counts."""
        return next((one for one in self.of(key).completions[-1:] if one[3] > self.now), None)

    def error(self, key: Key) -> str | None:
        """The last failure since the last completion, while it counts."""
        return next((error for error, until in self.of(key).failures[-1:] if until > self.now), None)

    def done(self, key: Key) -> bool:
        """Whether there is nothing left to do for this key."""
        completion = self.completion(key)
        return completion is not None and (key.mark is None or completion[1] is None or key.mark <= completion[1])

    def taken(self, claim: Claim) -> bool:
        """Whether somebody else has what this claim was for."""
        other = self.claim(claim.key)
        return self.done(claim.key) or (other is not None and other[0] != claim.token)

    def end_claims(self, key: Key) -> None:
        """Whoever finishes ends every claim: his own, or a dead one."""
        self.of(key).released.update(token for token, _, _ in self.of(key).claims)


class Comparison:
    """Does the same to a store and to the model, and looks at both after each step."""

    def __init__(self, harness: Harness) -> None:
        harness.reset()
        self.harness = harness
        (self.store,) = harness.stores(1)
        self.model = Model()
        self.claims: list[Claim] = []

    def check(self, value: str, mark: int | None, life: int) -> None:
        """Somebody asks for a key."""
        key, model = Key(value, mark), self.model
        check = self.store.check(key, life * MINUTE)
        completion, claim = model.completion(key), model.claim(key)
        if model.done(key):
            assert completion is not None
            assert check == Duplicate(key, completion[2])
        elif claim is not None:
            assert isinstance(check, InProgress)
            left = (claim[2] - model.now) * MINUTE
            assert left - 5 * MINUTE < check.free_in <= left
        else:
            assert isinstance(check, Claim)
            assert check.key == key
            self.claims.append(check)
            model.of(key).claims.append((check.token, mark, model.now + life))
        self.look(value)

    def complete(self, which: int, result: str | None, life: int) -> None:
        """Somebody who got a key, lately or long ago, has done the work."""
        claim, model = self._holder(which), self.model
        completion = model.completion(claim.key)
        again = completion is not None and completion[0] == claim.token
        refused = model.taken(claim) and not again
        try:
            self.store.store_result(claim, result, life * MINUTE)
        except LeaseLostError:
            assert refused
        else:
            assert not refused
            if not again:
                known = model.of(claim.key)
                known.completions.append((claim.token, claim.key.mark, result, model.now + life))
                known.failures.clear()
                model.end_claims(claim.key)
        self.look(claim.key.value)

    def fail(self, which: int, error: str, life: int) -> None:
        """Somebody who got a key, lately or long ago, has not done the work."""
        claim = self._holder(which)
        self.store.store_failure(claim, error, life * MINUTE)
        if not self.model.taken(claim):
            self.model.of(claim.key).failures.append((error, self.model.now + life))
            self.model.end_claims(claim.key)
        self.look(claim.key.value)

    def _holder(self, which: int) -> Claim:
        """Whoever got a key last, or before that; somebody whom the store never heard of if there is none."""
        return self.claims[-1 - which] if which < len(self.claims) else Claim(Key(VALUES[which % 2]))

    def wait(self, minutes: int, tidy: bool) -> None:
        """Time passes. What counts no more may be deleted, which nobody must notice."""
        self.harness.advance(minutes * MINUTE)
        self.model.now += minutes
        if tidy:
            self.store.cleanup()
        for value in VALUES:
            self.look(value)

    def look(self, value: str) -> None:
        """Both must know the same."""
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


def _compare(harness: Harness) -> None:
    @SETTINGS
    @given(st.lists(STEPS, min_size=10, max_size=40))
    def run(steps: list[tuple[Any, ...]]) -> None:
        comparison = Comparison(harness)
        for name, *arguments in steps:
            getattr(comparison, name)(*arguments)

    run()


def test_the_store_in_memory_is_as_the_model(memory_harness: MemoryHarness) -> None:
    """Any holders, stale ones too, any marks, any times."""
    _compare(memory_harness)


def test_the_store_in_redis_is_as_the_model(redis_harness: RedisHarness) -> None:
    """The same."""
    _compare(redis_harness)


def test_the_store_in_postgresql_is_as_the_model(postgres_harness: PostgresHarness) -> None:
    """The same."""
    _compare(postgres_harness)
