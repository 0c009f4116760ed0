"""The choice of what happens when a store is out of reach."""

from __future__ import annotations

from enum import StrEnum


class FailMode(StrEnum):
    """What happens when the store is out of reach (C6).

    OPEN runs the work unguarded, warns, and counts it: better twice than not at all. CLOSED does not run it and raises
    the store's RetryableError: better late than twice.
    """

    OPEN = "open"
    CLOSED = "closed"
