"""The runtimes of authorize_caller and manage_clients, which log in with different database roles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from grantwire.clients.authorizer import Authorizer
from grantwire.clients.lookup import LimitedLookup
from grantwire.clients.store import Clients
from grantwire.database import Database, DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.runtime.early import connect_early
from grantwire.settings import group, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

T = TypeVar("T")

_ENVIRONMENT_NAME = re.compile(r"[a-z0-9]{1,16}")


def _parse_environment_name(value: str) -> str:
    if not _ENVIRONMENT_NAME.fullmatch(value):
        raise ValueError(f"must be 1 to 16 lower-case letters and digits, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """The settings of authorize_caller and manage_clients."""

    database: DatabaseSettings = group(DatabaseSettings)
    # Part of every token, so that a token of another environment is rejected without a database query.
    environment: str = setting("TOKEN_ENVIRONMENT", _parse_environment_name)


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


# Without credentials of its own the function must not use those of the other functions, which cannot change clients.
_NO_CREDENTIALS = (
    "the administration of clients has its own database credentials: set ClientsDatabaseSecretArn of the stack"
    " (DATABASE_SECRET_ARN of a command) to a secret with a member of the role grantwire_clients; see docs/deploy.md"
)


def load_with_credentials(settings_class: type[T], environ: Mapping[str, str]) -> T:
    """Load the settings of a function that administrates clients; the ConfigError explains missing credentials."""
    try:
        return load(settings_class, environ)
    except ConfigError as error:
        has_credentials = any(environ.get(name, "").strip() for name in ("DATABASE_URL", "DATABASE_SECRET_ARN"))
        raise error if has_credentials else ConfigError([*error.problems, _NO_CREDENTIALS]) from None


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
