"""The runtime of deliver_notifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.notifications.delivery import Delivery
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.notifications.senders.factory import build_breaker
from grantwire.settings import flag, group, load, setting
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats
from grantwire.workers.leases import LeaseSettings, worker_name
from grantwire.workers.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self


# Attempts after 1 s, 2 s, 4 s and so on up to 8.5 minutes, then every 10 minutes: for about two days, and for at least
# 24 hours also if the random factor is the smallest one each time. A receiver that is down for a night needs no person.
PATIENCE = {"MAX_ATTEMPTS": "300", "BACKOFF_MAX": "10m"}


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """The settings of deliver_notifications."""

    database: DatabaseSettings = group(DatabaseSettings)
    leases: LeaseSettings = group(LeaseSettings, prefix="NOTIFICATION_DELIVERY_", defaults=PATIENCE)
    sender: SenderSettings = group(SenderSettings)
    wakeup: bool = setting("NOTIFICATION_DELIVERY_WAKEUP", flag, default="true")

    def problems(self) -> Iterator[str]:
        """Yield a problem if a notification could be claimed again while it is still being sent."""
        if self.sender.kind == "webhook" and self.sender.webhook_timeout >= self.leases.lease:
            yield "NOTIFICATION_WEBHOOK_TIMEOUT must be shorter than NOTIFICATION_DELIVERY_LEASE"


class DeliveryRuntime(WorkerRuntime):
    """The objects that deliver_notifications needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; connections are opened on first use."""
        settings = load(DeliverySettings, environ)
        # PostgreSQL caches the plan of the claim. A plan made for an empty table would keep scanning the whole table.
        session = {"enable_seqscan": "off"}
        database = Database(settings.database, application_name="grantwire-delivery", session=session)
        delivery = Delivery(
            database,
            build_sender(settings.sender),
            Listener(settings.database if settings.wakeup else None, "notifications"),
            settings.leases,
            worker_name(environ),
            breaker=build_breaker(settings.sender),
        )
        return cls(delivery, (delivery.close, database.close), Heartbeats(settings.database, delivery.name))
