"""The fail mode: what happens when the store is unavailable."""

from __future__ import annotations

from enum import StrEnum


class FailMode(StrEnum):
    """The behaviour when the store is unavailable (C6).

    OPEN runs the work unguarded, logs a warning and counts the run: choose it if running twice is better than not
    running. CLOSED raises the store's RetryableError without running: choose it if running late is better than twice.
    """

    OPEN = "open"
    CLOSED = "closed"


def choose_fail_mode(store: object, fail_mode: FailMode | None, default: FailMode) -> FailMode:
    """Return the given fail mode, else that of the store, else the default."""
    return fail_mode or getattr(store, "fail_mode", None) or default
