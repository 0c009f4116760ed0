"""The runtime of expire_entitlements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.expiry import Expiry, ExpirySettings
from grantwire.entitlements.settings import TimeSettings
from grantwire.settings import group, load
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ExpireSettings:
    """The settings of expire_entitlements."""

    database: DatabaseSettings = group(DatabaseSettings)
    times: TimeSettings = group(TimeSettings)
    expiry: ExpirySettings = group(ExpirySettings)


class ExpiryRuntime(WorkerRuntime):
    """The objects that expire_entitlements needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; the connection is opened on first use."""
        settings = load(ExpireSettings, environ)
        database = Database(settings.database, application_name="grantwire-expiry")
        expiry = Expiry(database, settings.times, settings.expiry)
        return cls(expiry, (database.close,), Heartbeats(settings.database, expiry.name))
