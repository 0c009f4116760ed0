"""The runtime of list_changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.settings import TimeSettings
from grantwire.feed import ChangeFeed, FeedSettings, Snapshot
from grantwire.settings import group, load
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ChangesSettings:
    """The settings of list_changes."""

    database: DatabaseSettings = group(DatabaseSettings)
    feed: FeedSettings = group(FeedSettings)
    times: TimeSettings = group(TimeSettings)
    limits: LimitSettings = group(LimitSettings)


@dataclass(frozen=True, slots=True)
class ChangesRuntime:
    """The objects that list_changes needs."""

    feed: ChangeFeed
    snapshot: Snapshot
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(ChangesSettings, environ)
        database = connect_early(Database(settings.database), environ)
        return cls(
            ChangeFeed(database, settings.feed),
            Snapshot(database, settings.times.grace),
            RateLimiter(database, settings.limits),
        )
