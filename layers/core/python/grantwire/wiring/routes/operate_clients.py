"""The runtime of operate_clients, which logs in with the database role of the administration of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.clients.store import Clients
from grantwire.database import Database
from grantwire.idempotency import IdempotencySettings
from grantwire.operations.clients import ClientAdministration
from grantwire.settings import group
from grantwire.wiring.callers import CallerSettings, load_with_credentials
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ClientOperationsSettings:
    """The settings of operate_clients."""

    callers: CallerSettings = group(CallerSettings)
    idempotency: IdempotencySettings = group(IdempotencySettings)
    limits: LimitSettings = group(LimitSettings)


@dataclass(frozen=True, slots=True)
class ClientOperationsRuntime:
    """The objects that operate_clients needs."""

    database: Database
    administration: ClientAdministration
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load_with_credentials(ClientOperationsSettings, environ)
        database = connect_early(Database(settings.callers.database, application_name="grantwire-clients"), environ)
        clients = Clients(database, settings.callers.environment)
        administration = ClientAdministration(database, clients, settings.idempotency, settings.limits)
        return cls(database, administration, RateLimiter(database, settings.limits))
