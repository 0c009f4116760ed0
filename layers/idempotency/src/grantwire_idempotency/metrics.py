"""The interface for idempotency metrics (C11); `powertools` implements it for CloudWatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from grantwire_idempotency.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

CheckLabel = Literal["new", "duplicate", "error"]


class IdempotencyMetrics(Protocol):
    """Receives every check. `flush` is called once for each call or batch."""

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """Count a check for the job or consumer `name`. A key that is in progress counts as a duplicate."""

    def record_unguarded_run(self, name: str) -> None:
        """Count a run without a claim: the store was unavailable and the fail mode is OPEN."""

    def flush(self) -> None:
        """Send the metrics that were counted since the last flush."""


class NoMetrics:
    """Discards all metrics."""

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""


class SafeMetrics:
    """Forwards all metrics and logs errors, so that a failure of the metrics never fails the work."""

    def __init__(self, metrics: IdempotencyMetrics) -> None:
        self._metrics = metrics

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        self._run_safely(lambda: self._metrics.record_check(name, result, seconds))

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        self._run_safely(lambda: self._metrics.record_unguarded_run(name))

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        self._run_safely(self._metrics.flush)

    def _run_safely(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception:
            logger.exception("could not write idempotency metrics")
