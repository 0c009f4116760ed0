"""The runtime of show_inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.notifications.listing import NotificationList
from grantwire.settings import flag, group, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class NotificationListSettings:
    """What show_inbox reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    # It shows anybody's notifications to whoever asks: for development, not for production.
    enabled: bool = setting("NOTIFICATION_INBOX_ENABLED", flag, default="false")


@dataclass(frozen=True, slots=True)
class NotificationListRuntime:
    """What show_inbox works with: nothing, unless it is switched on."""

    notification_list: NotificationList | None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the connection is made when it is first used."""
        settings = load(NotificationListSettings, environ)
        return cls(NotificationList(Database(settings.database)) if settings.enabled else None)
