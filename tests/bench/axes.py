"""The axes of a chart: where a value stands, and which values are worth a label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEW = 8
_APART = 30.0  # pixels between two labels, so that neither touches the other
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low`, drawn at the pixel `start`, to `high`, drawn at `end`."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, place = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (place - low) / (high - low) * (self.end - self.start)

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, log: bool = False, most: int = 10) -> Axis:
        """An axis that holds these values, with at most about so many round ticks; a linear one begins with zero."""
        ticks = _decimal(values) if log else _linear(values, most)
        shown = ticks if len(ticks) <= most else tuple(tick for tick in ticks if math.log10(tick).is_integer())
        return cls(ticks[0], ticks[-1], shown, start, end, log)

    @classmethod
    def through(cls, values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
        """An axis with its ticks at the values themselves if they are few and have room, else at round ones."""
        ticks = tuple(sorted(set(values)))
        if 1 < len(ticks) <= _FEW:
            axis = cls(ticks[0], ticks[-1], ticks, start, end, log)
            if all(axis.at(right) - axis.at(left) >= _APART for left, right in pairwise(ticks)):
                return axis
        return cls.over(values, start, end, log=log)


def short(value: float) -> str:
    """A tick's label: 0.5, 20, 1.5k, 1M."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _linear(values: Sequence[float], most: int) -> tuple[float, ...]:
    low, high = min(0.0, *values), max(0.0, *values)
    rough = (high - low or 1.0) / (most - 2)
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    last = max(1, math.ceil(high / step - 1e-9))
    return tuple(round(number * step, 12) for number in range(math.floor(low / step), last + 1))


def _decimal(values: Sequence[float]) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten: from the last that is no greater than all values to the first that is no less."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    marks = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    first = max(index for index, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(index for index, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return tuple(marks[first : max(last, first + 1) + 1])
