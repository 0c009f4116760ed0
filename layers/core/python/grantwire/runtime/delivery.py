"""The runtime of deliver_notifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.notifications.delivery import Delivery
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.notifications.senders.factory import build_breaker
from grantwire.runtime.worker import WorkerRuntime
from grantwire.settings import flag, group, load, setting
from grantwire.workers.leases import LeaseSettings, worker_name
from grantwire.workers.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """What deliver_notifications reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    leases: LeaseSettings = group(LeaseSettings, prefix="NOTIFICATION_DELIVERY_")
    sender: SenderSettings = group(SenderSettings)
    wakeup: bool = setting("NOTIFICATION_DELIVERY_WAKEUP", flag, default="true")


class DeliveryRuntime(WorkerRuntime):
    """What deliver_notifications works with."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; connections are made when they are first used."""
        settings = load(DeliverySettings, environ)
        # A claim that was planned on an empty table must not read all of it for as long as the connection lives.
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
        return cls(delivery, (delivery.close, database.close))
