"""What is counted about idempotency."""

from __future__ import annotations

from typing import Literal, Protocol

CheckResult = Literal["new", "duplicate", "error"]


class IdempotencyMetrics(Protocol):
    """Is told of every check; whoever runs checks flushes once for each call or batch."""

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """A store was asked, for the job or consumer `name`; one that is in progress counts as a duplicate."""

    def unguarded(self, name: str) -> None:
        """Work was done without the store's word: it was down, and the fail mode is OPEN."""

    def flush(self) -> None:
        """Send what was counted."""
