"""Measures contenders in rounds: each round measures every contender once, in an order that rotates.

A disturbance of the machine usually lasts longer than one measurement, so it affects all contenders of a round alike.
Contenders are therefore compared within each round, and the result is the median of these ratios.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress

# The probability that the median is below the interval, and that it is above.
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of several rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return median(self.values)

    @property
    def low(self) -> float:
        """Lowest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Highest value."""
        return max(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval that has the median of all possible rounds with 95 % certainty; all values if there are few.

        Each round is above that median with probability one half. So the number of rounds below it is binomial,
        whatever the distribution of the values.
        """
        values, count = sorted(self.values), len(self.values)
        rank, tail = 0, 0.5**count
        while (tail := tail + comb(count, rank + 1) * 0.5**count) <= _TAIL:
            rank += 1
        return values[rank], values[-1 - rank]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rates of each contender in each round, in units of work per second."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, name: str) -> Spread:
        """Return the rates of a contender."""
        return Spread(tuple(self.rates[name]))

    def ratio(self, name: str, to: str) -> Spread:
        """Return the rate of `name` divided by the rate of `to`, round by round."""
        return Spread(tuple(rate / base for rate, base in zip(self.rates[name], self.rates[to], strict=True)))


def run_rounds(title: str, rounds: int, contenders: Mapping[str, Callable[[], float]], progress: Progress) -> Rounds:
    """Measure every contender in every round; a contender is a function that does its work and returns its rate."""
    measured = Rounds({name: [] for name in contenders})
    names = list(contenders)
    with progress.step(f"{title}: {' · '.join(names)}, {rounds} rounds"):
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                measured.rates[name].append(contenders[name]())
    return measured
