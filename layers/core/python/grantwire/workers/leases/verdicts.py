"""What becomes of work that failed: tried again later, or given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire.workers.leases.settings import LeaseSettings


@dataclass(frozen=True, slots=True)
class Verdict:
    """The attempts made so far, and when to try again; None means never (FAILED)."""

    attempt_count: int
    retry_after: timedelta | None


def judge(
    settings: LeaseSettings, attempts_before: int, rand: Callable[[], float], *, permanent: bool = False
) -> Verdict:
    """After one more failed attempt. A permanent failure, or the last of the attempts, is not tried again (O5)."""
    attempts = attempts_before + 1
    if permanent or attempts >= settings.max_attempts:
        return Verdict(attempts, None)
    return Verdict(attempts, settings.backoff.delay(attempts, rand))
