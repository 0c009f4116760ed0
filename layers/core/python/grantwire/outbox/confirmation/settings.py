"""The settings of the confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.settings import duration, setting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class ConfirmationSettings:
    """How often published events are compared with the inbox, and how old they are then."""

    interval: timedelta = setting(
        "ENTITLEMENT_OUTBOX_CONFIRM_INTERVAL", duration(low="100ms", high="30s"), default="10s"
    )
    grace: timedelta = setting("ENTITLEMENT_OUTBOX_CONFIRM_GRACE", duration(low="100ms", high="1h"), default="15s")
    backoff: timedelta = setting("ENTITLEMENT_OUTBOX_CONFIRM_BACKOFF", duration(low="1s", high="10m"), default="30s")

    def problems(self) -> Iterator[str]:
        """Yield a problem if the clock could step back unnoticed between two checks."""
        if self.interval >= self.grace:
            yield "ENTITLEMENT_OUTBOX_CONFIRM_GRACE must exceed ENTITLEMENT_OUTBOX_CONFIRM_INTERVAL"
