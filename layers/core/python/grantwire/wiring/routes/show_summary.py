"""The runtime of show_summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.settings import TimeSettings
from grantwire.read_model.summary import Summaries
from grantwire.settings import group, load
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class SummarySettings:
    """The settings of show_summary."""

    database: DatabaseSettings = group(DatabaseSettings)
    limits: LimitSettings = group(LimitSettings)
    times: TimeSettings = group(TimeSettings)


@dataclass(frozen=True, slots=True)
class SummaryRuntime:
    """The objects that show_summary needs."""

    summaries: Summaries
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(SummarySettings, environ)
        database = connect_early(Database(settings.database), environ)
        return cls(Summaries(database, settings.times.grace_interval), RateLimiter(database, settings.limits))
