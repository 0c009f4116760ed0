"""The servers that tests use: real ones, started once, from wheels or given by address.

`GRANTWIRE_TEST_BACKEND` is `embedded` (the default: PostgreSQL and NATS from wheels, on every PostgreSQL major version
that this machine has) or `external` (a PostgreSQL at `GRANTWIRE_TEST_DATABASE_URL`, whose user may create databases,
and a NATS with JetStream at `GRANTWIRE_TEST_NATS_URL`).
Nothing but this module knows which.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from grantwire.migrations import migrate
from infra.local.nats import NatsServer
from infra.local.postgres import UNSAFE, PostgresServer, installations
from tests.paths import MIGRATIONS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STATE = ROOT / ".grantwire" / "test" / f"run-{os.getpid()}"
_TEMPLATE = "grantwire_template"


class Cluster(Protocol):
    """A PostgreSQL server."""

    def start(self) -> None:
        """Return when it serves."""

    def url(self, database: str = "postgres") -> str:
        """Address of one of its databases."""

    def destroy(self) -> None:
        """Stop it if we started it."""


@dataclass(frozen=True, slots=True)
class ExternalCluster:
    """A server that somebody else runs."""

    address: str

    def start(self) -> None:
        """It runs already."""

    def url(self, database: str = "postgres") -> str:
        """Address of one of its databases."""
        return urlunsplit(urlsplit(self.address)._replace(path=f"/{database}"))

    def destroy(self) -> None:
        """It is not ours."""


class Nats(Protocol):
    """A NATS server with JetStream."""

    @property
    def url(self) -> str:
        """Its address."""

    def start(self) -> None:
        """Return when it serves."""

    def destroy(self) -> None:
        """Stop it if we started it."""


@dataclass(frozen=True, slots=True)
class ExternalNats:
    """A server that somebody else runs."""

    url: str

    def start(self) -> None:
        """It runs already."""

    def destroy(self) -> None:
        """It is not ours."""


def nats() -> Nats:
    """The NATS that the tests run on."""
    if os.environ.get("GRANTWIRE_TEST_BACKEND", "embedded") == "external":
        return ExternalNats(os.environ["GRANTWIRE_TEST_NATS_URL"])
    return NatsServer(STATE / "nats")


def embedded_cluster(binaries: Path, state: Path) -> PostgresServer:
    """A server that is fast, because nobody will miss its data."""
    return PostgresServer(state, binaries=binaries, settings=UNSAFE)


def clusters() -> dict[str, Callable[[], Cluster]]:
    """Every PostgreSQL that the tests run on, by name."""
    backend = os.environ.get("GRANTWIRE_TEST_BACKEND", "embedded")
    if backend == "external":
        address = os.environ["GRANTWIRE_TEST_DATABASE_URL"]
        return {"external": lambda: ExternalCluster(address)}
    if backend == "embedded":
        found = {f"pg{one.major}": one.binaries for one in reversed(installations())}
        return {
            name: lambda name=name, binaries=binaries: embedded_cluster(binaries, STATE / name)  # type: ignore[misc]
            for name, binaries in sorted(found.items(), reverse=True)
        }
    raise ValueError(f"GRANTWIRE_TEST_BACKEND must be embedded or external, not {backend!r}")


class Databases:
    """Hands out migrated databases of one cluster, cloned from a template."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._template = f"{_TEMPLATE}_{uuid.uuid4().hex[:8]}"
        self._create(self._template, "template1")
        migrate(cluster.url(self._template), MIGRATIONS)

    def empty(self) -> str:
        """Address of a new database without a schema."""
        return self._clone("template1")

    def migrated(self) -> str:
        """Address of a new database with the current schema."""
        return self._clone(self._template)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)"), urlsplit(url).path.lstrip("/"))

    def close(self) -> None:
        """Remove what was made for all tests."""
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)"), self._template)

    def _clone(self, template: str) -> str:
        name = f"gw_{uuid.uuid4().hex[:12]}"
        self._create(name, template)
        return self.cluster.url(name)

    def _create(self, name: str, template: str) -> None:
        self._admin(sql.SQL("CREATE DATABASE {} TEMPLATE {}"), name, template)

    def _admin(self, statement: sql.SQL, *names: str) -> None:
        with psycopg.connect(self.cluster.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.format(*map(sql.Identifier, names)))
