"""Contenders measured side by side: round after round, each once, in an order that turns with every round.

What disturbs a machine lasts longer than one measurement, so it falls on all contenders of a round alike. Two are
compared round by round, and the median of those ratios is what counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure as several rounds gave it."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The one in the middle."""
        return median(self.values)

    @property
    def low(self) -> float:
        """The least."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The most."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Rounds:
    """What each contender did in each round, in units of work a second."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, name: str) -> Spread:
        """A contender's own figure."""
        return Spread(tuple(self.rates[name]))

    def ratio(self, name: str, to: str) -> Spread:
        """How much of `to`'s work `name` did in the same round."""
        return Spread(tuple(one / other for one, other in zip(self.rates[name], self.rates[to], strict=True)))


def interleave(title: str, rounds: int, contenders: Mapping[str, Callable[[], float]], progress: Progress) -> Rounds:
    """Measure every contender in every round; each is a function that works and returns its rate."""
    measured = Rounds({name: [] for name in contenders})
    names = list(contenders)
    with progress.step(f"{title}: {' · '.join(names)}, {rounds} rounds"):
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                measured.rates[name].append(contenders[name]())
    return measured
