"""The servers that tests use: real ones, started once. Where they come from is `tests.support.backends`' affair."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.support.backends import Cluster, Nats, chosen
from tests.support.migrating import migrate
from tests.support.paths import MIGRATIONS
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STATE", "Cluster", "Databases", "clusters", "nats"]

_TEMPLATE = "grantwire_template"
_PASSWORD = uuid.uuid4().hex


def clusters() -> dict[str, Callable[[], Cluster]]:
    """Every PostgreSQL that the tests run on, by name."""
    return chosen().clusters()


def nats() -> Nats:
    """The NATS that the tests run on."""
    return chosen().nats()


class Databases:
    """Hands out migrated databases of one cluster, cloned from a template.

    Their addresses are those of the functions' role, so that a test finds out which right a function lacks.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._template = f"{_TEMPLATE}_{uuid.uuid4().hex[:8]}"
        self._login = f"grantwire_test_{uuid.uuid4().hex[:8]}"
        self._create(self._template, "template1")
        migrate(cluster.url(self._template), MIGRATIONS)
        self._run(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE grantwire_functions").format(
                sql.Identifier(self._login), sql.Literal(_PASSWORD)
            )
        )

    def empty(self) -> str:
        """Address of a new database without a schema, for its owner."""
        return self._clone("template1")

    def migrated(self) -> str:
        """Address of a new database with the current schema, for the functions."""
        return self.of_functions(self._clone(self._template))

    def of_functions(self, url: str) -> str:
        """The same database for the functions' role."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{self._login}:{_PASSWORD}@{parts.netloc.rpartition('@')[2]}"))

    def of_owner(self, url: str) -> str:
        """The same database for the role that owns it."""
        return self.cluster.url(urlsplit(url).path.lstrip("/"))

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)"), urlsplit(url).path.lstrip("/"))

    def close(self) -> None:
        """Remove what was made for all tests; grantwire_functions stays, which others may use."""
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)"), self._template)
        self._admin(sql.SQL("DROP ROLE {}"), self._login)

    def _clone(self, template: str) -> str:
        name = f"gw_{uuid.uuid4().hex[:12]}"
        self._create(name, template)
        return self.cluster.url(name)

    def _create(self, name: str, template: str) -> None:
        self._admin(sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"), name, template)

    def _admin(self, statement: sql.SQL, *names: str) -> None:
        self._run(statement.format(*map(sql.Identifier, names)))

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.cluster.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)
