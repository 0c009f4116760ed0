"""What delivery knows about the receiver, for its heartbeat: the circuit, failures in a row and the last error (W4)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from grantwire.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency import CircuitBreaker

# A heartbeat opens a connection, so one for each outcome would cost too much. A change of the circuit is reported
# at once.
_REPORT_SECONDS = 5.0
_MAX_ERROR_LENGTH = 300


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class ReceiverHealth:
    """The outcomes of the last attempts to send, of one execution environment."""

    def __init__(self, breaker: CircuitBreaker | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._breaker = breaker
        self._clock = clock
        self._failures = 0
        self._failing_since: str | None = None
        self._last_error: str | None = None
        self._last_error_at: str | None = None
        self._last_response_at: str | None = None
        self._reported_at = float("-inf")
        self._reported: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open: the receiver is not called, except for trials."""
        return self._breaker is not None and not self._breaker.closed

    def record(self, error: BaseException | None) -> None:
        """Count the outcome of one attempt. Any response is a sign of life, also a refusal."""
        if error is not None:
            self._last_error, self._last_error_at = (str(error) or repr(error))[:_MAX_ERROR_LENGTH], _utc_now()
        if isinstance(error, RetryableError):
            self._failures += 1
            self._failing_since = self._failing_since or _utc_now()
        else:
            self._failures, self._failing_since, self._last_response_at = 0, None, _utc_now()

    def facts(self, *, now: bool = False) -> dict[str, Any]:
        """Return what the heartbeat says, which changes at most every few seconds, unless the circuit does or `now`.

        It is empty before the first attempt, so that the heartbeat keeps what another execution environment found.
        """
        circuit = "OPEN" if self.is_open else "CLOSED"
        is_due = now or circuit != self._reported.get("circuit") or self._clock() - self._reported_at >= _REPORT_SECONDS
        if is_due and (self._last_error_at or self._last_response_at):
            self._reported_at = self._clock()
            self._reported = {
                "circuit": circuit,
                "failures_in_a_row": self._failures,
                "failing_since": self._failing_since,
                "last_error": self._last_error,
                "last_error_at": self._last_error_at,
                "last_response_at": self._last_response_at,
            }
        return {"receiver": self._reported} if self._reported else {}
