"""Settings of entitlements with a start and an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.settings import duration, setting

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class TimeSettings:
    """When an entitlement ends, and when its end is announced.

    Every function that reads or changes entitlements must have the same values.
    """

    # The time after expires_at during which the entitlement is still valid (K5).
    grace: timedelta = setting("ENTITLEMENT_GRACE", duration(low="0s", high="365d"), default="0s")
    # The time before expires_at at which EntitlementExpiring is recorded; zero: never (K4).
    notice: timedelta = setting("ENTITLEMENT_EXPIRY_NOTICE", duration(low="0s", high="365d"), default="72h")

    @property
    def grace_interval(self) -> str:
        """The grace as a PostgreSQL interval."""
        return f"{self.grace.total_seconds()} seconds"

    @property
    def notice_interval(self) -> str:
        """The notice as a PostgreSQL interval."""
        return f"{self.notice.total_seconds()} seconds"
