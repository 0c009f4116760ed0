"""The servers of the benchmark: PostgreSQL and NATS with default settings, on disk and with fsync on, and Valkey."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from infra.local.servers.postgres import PostgresServer
from infra.local.system import unprivileged
from tests.support.nats_users import ADMIN, NatsWithUsers, configured
from tests.support.servers import Databases
from tests.support.valkey import ValkeyServer
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

# One caller sends all requests of a benchmark.
_NO_LIMITS = {"CLIENT_RATE_LIMIT": "1000000", "CLIENT_BURST_LIMIT": "1000000"}


class Servers:
    """PostgreSQL, NATS and Valkey for one run, with databases that are cloned from a migrated one."""

    def __init__(self, state: Path) -> None:
        self.postgres = PostgresServer(state / "postgres")
        self.nats = NatsWithUsers(state / "nats")
        self.valkey = ValkeyServer(state / "valkey")
        self._created: list[str] = []

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
        """Creates migrated databases."""
        return Databases(self.postgres)

    def database(self) -> str:
        """Create a migrated database and return its address for the role of the functions."""
        url = self.databases.migrated()
        self._created.append(url)
        return url

    def drop_databases(self) -> None:
        """Drop every database that was created."""
        while self._created:
            self.databases.drop(self._created.pop())

    def database_without_flush(self) -> str:
        """Create a database whose commits do not wait for the disk, for sections that do not measure the disk."""
        url = self.database()
        with self.owner(url) as owner:
            name = sql.Identifier(owner.info.dbname)
            owner.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        return url

    def owner(self, url: str) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to the same database as its owner, in autocommit mode."""
        return psycopg.connect(self.databases.url_for_owner(url), autocommit=True)

    def environ(self, url: str) -> dict[str, str]:
        """Return an environment for functions that use this database, with new, configured streams."""
        return configured(worker_environ(url, self.nats.url)) | _NO_LIMITS

    @property
    def nats_admin_url(self) -> str:
        """The address of NATS for a user without restrictions."""
        return self.nats.url_for(ADMIN)

    def binary(self, name: str) -> Path:
        """Return the path of one of PostgreSQL's programs."""
        installation = self.postgres.installation
        return unprivileged.accessible_binaries(installation.binaries, installation.version) / name
