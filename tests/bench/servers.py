"""The benchmark's own servers: PostgreSQL and NATS as they come, fsync on, on disk."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from infra.local.servers.nats import NatsServer
from infra.local.servers.postgres import PostgresServer
from infra.local.system import unprivileged
from tests.support.servers import Databases
from tests.support.valkey import ValkeyServer
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self


class Servers:
    """One PostgreSQL, one NATS and one Valkey for a whole run, and databases cloned from a migrated one."""

    def __init__(self, state: Path) -> None:
        self.postgres = PostgresServer(state / "postgres")
        self.nats = NatsServer(state / "nats")
        self.valkey = ValkeyServer(state / "valkey")
        self._made: list[str] = []

    def __enter__(self) -> Self:
        for server in (self.postgres, self.nats, self.valkey):
            server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (self.postgres, self.nats, self.valkey):
            server.destroy()

    @cached_property
    def databases(self) -> Databases:
        """Hands out migrated databases."""
        return Databases(self.postgres)

    def database(self) -> str:
        """Address of a new migrated database, for the functions' role."""
        url = self.databases.migrated()
        self._made.append(url)
        return url

    def drop_databases(self) -> None:
        """Remove all that were handed out: nobody needs them any more."""
        while self._made:
            self.databases.drop(self._made.pop())

    def database_without_flush(self) -> str:
        """As `database`, but a commit does not wait for the disk: where its time is not what is measured."""
        url = self.database()
        with self.owner(url) as owner:
            name = sql.Identifier(owner.info.dbname)
            owner.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        return url

    def owner(self, url: str) -> psycopg.Connection[tuple[object, ...]]:
        """A connection to the same database as the role that owns it, in autocommit."""
        return psycopg.connect(self.databases.of_owner(url), autocommit=True)

    def environ(self, url: str) -> dict[str, str]:
        """The environment of functions that work on this database, with streams that nobody else has."""
        return worker_environ(url, self.nats.url)

    def binary(self, name: str) -> Path:
        """One of PostgreSQL's own programs."""
        installation = self.postgres.installation
        return unprivileged.accessible_binaries(installation.binaries, installation.version) / name
