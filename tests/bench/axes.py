"""The axes of a chart: pixel positions of values, and the values that get a tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_TICKS_AT_VALUES = 8
_MIN_TICK_DISTANCE = 30.0  # in pixels, so that labels do not overlap
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Linear or logarithmic axis from `low`, drawn at pixel `start`, to `high`, drawn at pixel `end`."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, scaled = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (scaled - low) / (high - low) * (self.end - self.start)

    @classmethod
    def with_round_ticks(
        cls, values: Sequence[float], start: float, end: float, *, log: bool = False, max_ticks: int = 10
    ) -> Axis:
        """Return an axis that includes the values, with about `max_ticks` round ticks at most.

        A linear axis includes zero.
        """
        ticks = _logarithmic_ticks(values) if log else _linear_ticks(values, max_ticks)
        shown = ticks if len(ticks) <= max_ticks else tuple(tick for tick in ticks if math.log10(tick).is_integer())
        return cls(ticks[0], ticks[-1], shown, start, end, log)

    @classmethod
    def with_ticks_at_values(cls, values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
        """Return an axis with its ticks at the values if their labels fit, otherwise with round ticks."""
        ticks = tuple(sorted(set(values)))
        if 1 < len(ticks) <= _MAX_TICKS_AT_VALUES:
            axis = cls(ticks[0], ticks[-1], ticks, start, end, log)
            positions = [axis.position(tick) for tick in ticks]
            if all(right - left >= _MIN_TICK_DISTANCE for left, right in pairwise(positions)):
                return axis
        return cls.with_round_ticks(values, start, end, log=log)


def format_tick(value: float) -> str:
    """Return the label of a tick: 0.5, 20, 1.5k, 1M."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _linear_ticks(values: Sequence[float], max_ticks: int) -> tuple[float, ...]:
    low, high = min(0.0, *values), max(0.0, *values)
    rough = (high - low or 1.0) / (max_ticks - 2)
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    last = max(1, math.ceil(high / step - 1e-9))
    return tuple(round(number * step, 12) for number in range(math.floor(low / step), last + 1))


def _logarithmic_ticks(values: Sequence[float]) -> tuple[float, ...]:
    """Return 1, 2 and 5 times powers of ten that enclose the values as closely as possible."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    marks = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    first = max(index for index, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(index for index, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return tuple(marks[first : max(last, first + 1) + 1])
