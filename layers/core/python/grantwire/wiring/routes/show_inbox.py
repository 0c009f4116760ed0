"""The runtime of show_inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.database import Database, DatabaseSettings
from grantwire.notifications.listing import NotificationList
from grantwire.settings import flag, group, load, setting
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class NotificationListSettings:
    """The settings of show_inbox."""

    database: DatabaseSettings = group(DatabaseSettings)
    limits: LimitSettings = group(LimitSettings)
    # The route shows the notifications of any user to any caller. Enable it for development only.
    enabled: bool = setting("NOTIFICATION_INBOX_ENABLED", flag, default="false")


@dataclass(frozen=True, slots=True)
class NotificationListRuntime:
    """The objects that show_inbox needs; None if the route is not enabled."""

    notification_list: NotificationList | None
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(NotificationListSettings, environ)
        if not settings.enabled:
            return cls(None)
        database = connect_early(Database(settings.database), environ)
        return cls(NotificationList(database), RateLimiter(database, settings.limits))
