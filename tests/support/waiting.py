"""Waiting for a condition, with one limit that a busy machine does not reach (V9)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from grantwire.workers.budget import Budget
from infra.local.system.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

# Half the time that a test has. No test may assert that anything happens sooner.
WAIT_SECONDS = 60.0
# For what a wake-up causes, and a poll would cause after its longest interval, a minute.
WAKEUP_SECONDS = 45.0


def until(description: str, condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until `condition` is true; fail after `seconds`."""
    assert wait_for(condition, seconds, every=0.005), f"timed out waiting for: {description}"


def until_idle() -> Budget:
    """Return a budget that ends when the worker is idle."""
    return Budget(time.monotonic() + WAIT_SECONDS, until_idle=True)


def budget_until(condition: Callable[[], object]) -> Budget:
    """Return a budget that ends when `condition` is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    return Budget(deadline, clock=lambda: deadline if condition() else time.monotonic())
