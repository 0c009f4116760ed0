"""The sender that writes to the log: the default, which needs no receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.events import OPTIONAL_FIELDS
from grantwire.notifications.senders.interface import Sender
from grantwire.observability import logger

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification


class LogSender(Sender):
    """Writes one log line for each notification, with its ids and without personal data."""

    @property
    def concurrency(self) -> int:
        """See `Sender`."""
        return 1

    def send(self, notification: Notification) -> str:
        """Write the log line, with the optional fields of the event."""
        payload = notification.payload
        fields = {name: payload[name] for name in OPTIONAL_FIELDS if name in payload}
        logger.info(
            "notification delivered",
            notification_id=str(notification.notification_id),
            event_id=payload.get("event_id"),
            event_type=notification.event_type,
            version=notification.version,
            notification_trace_id=notification.trace_id,
            **fields,
        )
        return "written to the log"
