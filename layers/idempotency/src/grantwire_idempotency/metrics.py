"""What is counted about idempotency (C11): the interface. `powertools` implements it for CloudWatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from grantwire_idempotency.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

CheckResult = Literal["new", "duplicate", "error"]


class IdempotencyMetrics(Protocol):
    """Is told of every check; whoever runs checks flushes once for each call or batch."""

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """A store was asked, for the job or consumer `name`; one that is in progress counts as a duplicate."""

    def unguarded(self, name: str) -> None:
        """Work was done without the store's word: it was down, and the fail mode is OPEN."""

    def flush(self) -> None:
        """Send what was counted."""


class NoMetrics:
    """Counts nothing."""

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """See `IdempotencyMetrics`."""

    def unguarded(self, name: str) -> None:
        """See `IdempotencyMetrics`."""

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""


class SafeMetrics:
    """Passes everything on and logs what fails there: counting is never a reason to lose work."""

    def __init__(self, metrics: IdempotencyMetrics) -> None:
        self._metrics = metrics

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        self._try(lambda: self._metrics.checked(name, result, seconds))

    def unguarded(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        self._try(lambda: self._metrics.unguarded(name))

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        self._try(self._metrics.flush)

    def _try(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:
            logger.exception("could not write idempotency metrics")
