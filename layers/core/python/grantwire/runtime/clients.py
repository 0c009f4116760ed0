"""The runtimes of authorize_caller and manage_clients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.authorizer import Authorizer
from grantwire.clients.store import Clients
from grantwire.database import Database, DatabaseSettings
from grantwire.settings import group, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

_ENVIRONMENT = re.compile(r"[a-z0-9]{1,16}")


def _environment(value: str) -> str:
    if not _ENVIRONMENT.fullmatch(value):
        raise ValueError(f"must be 1 to 16 lower-case letters and digits, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """What authorize_caller and manage_clients read from their environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    # Part of every token: one of another environment is refused without looking it up.
    environment: str = setting("TOKEN_ENVIRONMENT", _environment)


@dataclass(frozen=True, slots=True)
class CallerRuntime:
    """What authorize_caller and manage_clients work with."""

    database: Database
    clients: Clients
    authorizer: Authorizer

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the connection is made when it is first used."""
        settings = load(CallerSettings, environ)
        database = Database(settings.database)
        clients = Clients(database, settings.environment)
        return cls(database, clients, Authorizer(clients, settings.environment))

    def close(self) -> None:
        """Give the connection back."""
        self.database.close()
