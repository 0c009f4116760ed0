"""The runtime of check_entitlement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.checks import CacheSettings, Checks
from grantwire.entitlements.history import History
from grantwire.entitlements.settings import TimeSettings
from grantwire.settings import group, load
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The settings of check_entitlement."""

    database: DatabaseSettings = group(DatabaseSettings)
    times: TimeSettings = group(TimeSettings)
    caching: CacheSettings = group(CacheSettings)
    limits: LimitSettings = group(LimitSettings)


@dataclass(frozen=True, slots=True)
class CheckRuntime:
    """The objects that check_entitlement needs."""

    checks: Checks
    history: History
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(CheckSettings, environ)
        database = connect_early(Database(settings.database), environ)
        checks = Checks(database, settings.times, settings.caching)
        return cls(checks, History(database), RateLimiter(database, settings.limits))
