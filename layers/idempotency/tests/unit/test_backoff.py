"""O4, C12: the exponential backoff."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grantwire_idempotency import Backoff

SECOND = timedelta(seconds=1)


def backoff(*, floor: timedelta = timedelta(0), low: float = 1, high: float = 1) -> Backoff:
    """Return a backoff from one second up to one minute."""
    return Backoff(SECOND, 60 * SECOND, floor, low, high)


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (100_000, 60)])
def test_delay_doubles_up_to_cap(attempt: int, seconds: float) -> None:
    """O4: the delay is min(cap, base * 2^(attempt - 1)), even for an exponent that overflows a float."""
    assert backoff().delay(attempt, lambda: 0.5) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("rand", "seconds"), [(0.0, 30), (0.5, 60), (0.75, 75)])
def test_jitter_is_applied_after_cap(rand: float, seconds: float) -> None:
    """O4: the jitter spreads workers even when all of them have reached the cap."""
    assert backoff(low=0.5, high=1.5).delay(20, lambda: rand) == timedelta(seconds=seconds)


def test_delay_is_never_below_floor() -> None:
    """O4: the jitter cannot reduce a delay below the floor; larger delays are unchanged."""
    with_floor = backoff(floor=timedelta(milliseconds=800), low=0.5, high=1.5)
    assert with_floor.delay(1, lambda: 0.0) == timedelta(milliseconds=800)
    assert with_floor.delay(2, lambda: 0.0) == SECOND
