"""The runtime of authorize_caller, which the gateway asks before it calls the function of a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.authorizer import Authorizer
from grantwire.clients.lookup import LimitedLookup
from grantwire.clients.store import Clients
from grantwire.database import Database
from grantwire.settings import load
from grantwire.wiring.callers import CallerSettings
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class CallerRuntime:
    """The objects that authorize_caller needs."""

    database: Database
    authorizer: Authorizer

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(CallerSettings, environ)
        database = connect_early(Database(settings.database), environ)
        clients = LimitedLookup(Clients(database, settings.environment))
        return cls(database, Authorizer(clients, settings.environment))

    def close(self) -> None:
        """Close the database connection."""
        self.database.close()
