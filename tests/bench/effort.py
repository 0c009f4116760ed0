"""How much a run measures: a full run, a quick one, or a smoke run that only proves that the benchmark works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes of a run. A round measures every contender once, for `seconds` or until its work is done."""

    name: str
    rounds: int
    seconds: float
    callers: int = 4
    pairs: int = 20
    clients: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    wakeup_clients: tuple[int, ...] = (4, 16, 32)
    events: int = 20_000
    hot_events: int = 2_000
    expired: int = 1_000_000
    ending: int = 100_000
    ending_once: int = 1_000_000
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    parked: int = 100_000
    starts: int = 7
    end_to_end_seconds: float = 300.0


FULL = Effort("full", rounds=5, seconds=2.0)
QUICK = Effort(
    "quick",
    rounds=3,
    pairs=5,
    seconds=1.5,
    clients=(1, 4, 16, 32),
    expired=300_000,
    ending=20_000,
    ending_once=100_000,
    sizes=(1_000, 100_000),
    starts=3,
    end_to_end_seconds=75.0,
)
SMOKE = Effort(
    "smoke",
    rounds=1,
    pairs=1,
    seconds=0.1,
    callers=1,
    clients=(1, 2),
    wakeup_clients=(2,),
    events=400,
    hot_events=40,
    expired=2_000,
    ending=400,
    ending_once=1_000,
    sizes=(300,),
    parked=100,
    starts=1,
    end_to_end_seconds=0.0,
)
