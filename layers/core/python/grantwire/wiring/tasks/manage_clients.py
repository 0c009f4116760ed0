"""The runtime of manage_clients, which logs in with the database role of the administration of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.store import Clients
from grantwire.database import Database
from grantwire.wiring.callers import CallerSettings, load_with_credentials

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ClientsRuntime:
    """The objects that manage_clients and its command line tool need."""

    database: Database
    clients: Clients

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; it connects to the database on first use."""
        settings = load_with_credentials(CallerSettings, environ)
        database = Database(settings.database, application_name="grantwire-clients")
        return cls(database, Clients(database, settings.environment))

    def close(self) -> None:
        """Close the database connection."""
        self.database.close()
