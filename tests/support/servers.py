"""The PostgreSQL and NATS servers that tests run on, and a migrated database for each test."""

from __future__ import annotations

import uuid
from collections import deque
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from tests.support.backends import Cluster, Nats, select_backend
from tests.support.migrations import migrate
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STATE", "Cluster", "Databases", "clusters", "nats", "newest_postgres"]

_TEMPLATE = "grantwire_template"
_DROPPED_LATER = 5
_PASSWORD = uuid.uuid4().hex


@cache
def clusters() -> dict[str, Callable[[], Cluster]]:
    """Return a factory for each PostgreSQL that the tests run on, by name.

    A factory is always the same object: pytest would start another server for another one.
    """
    return select_backend().clusters()


def nats() -> Nats:
    """Return the NATS that the tests run on."""
    return select_backend().nats()


# For a test of refused input, of a client, of a worker process, of NATS or of metrics, one PostgreSQL is enough. Its
# SQL has other tests on every PostgreSQL.
newest_postgres = pytest.mark.parametrize(
    "databases", list(clusters().values())[:1], ids=list(clusters())[:1], indirect=True, scope="session"
)


class Databases:
    """Creates migrated databases on one cluster by cloning a template.

    Their addresses use the database role of the functions, so that a test fails if a function lacks a privilege.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._connection = psycopg.connect(cluster.url("postgres"), autocommit=True)
        self._dropped: deque[str] = deque()
        self._template = f"{_TEMPLATE}_{uuid.uuid4().hex[:8]}"
        self._login = f"grantwire_test_{uuid.uuid4().hex[:8]}"
        self._clients_login = f"{self._login}_clients"
        self._create(self._template, "template1")
        migrate(cluster.url(self._template))
        for login, group in ((self._login, "grantwire_functions"), (self._clients_login, "grantwire_clients")):
            create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}")
            self._run(create.format(sql.Identifier(login), sql.Literal(_PASSWORD), sql.Identifier(group)))

    def empty(self) -> str:
        """Create a database without a schema and return its address for the owner."""
        return self._clone("template1")

    def migrated(self) -> str:
        """Create a database with the current schema and return its address for the functions."""
        return self.url_for_functions(self._clone(self._template))

    def url_for_functions(self, url: str) -> str:
        """Return the address of the same database for the role of the functions."""
        return self._url_for(self._login, url)

    def url_for_clients(self, url: str) -> str:
        """Return the address of the same database for the role of manage_clients."""
        return self._url_for(self._clients_login, url)

    def _url_for(self, login: str, url: str) -> str:
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{login}:{_PASSWORD}@{parts.netloc.rpartition('@')[2]}"))

    def url_for_owner(self, url: str) -> str:
        """Return the address of the same database for its owner."""
        return self.cluster.url(urlsplit(url).path.lstrip("/"))

    def drop(self, url: str) -> None:
        """Close the connections to a database, and drop it after some others.

        PostgreSQL waits 100 ms for each connection that has not ended yet.
        """
        self._dropped.append(urlsplit(url).path.lstrip("/"))
        self._connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [self._dropped[-1]]
        )
        if len(self._dropped) > _DROPPED_LATER:
            self._drop_database(self._dropped.popleft())

    def close(self) -> None:
        """Drop the template and the login roles. The group roles stay: other databases may use them."""
        with self._connection:
            for name in (*self._dropped, self._template):
                self._drop_database(name)
            self._admin(sql.SQL("DROP ROLE {}, {}"), self._login, self._clients_login)

    def _clone(self, template: str) -> str:
        name = f"gw_{uuid.uuid4().hex[:12]}"
        self._create(name, template)
        self._restrict(name)
        return self.cluster.url(name)

    def _restrict(self, database: str) -> None:
        """Let only the owner and the login roles connect, as in a deployment."""
        self._admin(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC"), database)
        self._admin(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}, {}"), database, self._login, self._clients_login)

    def _create(self, name: str, template: str) -> None:
        self._admin(sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"), name, template)

    def _drop_database(self, name: str) -> None:
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)"), name)

    def _admin(self, statement: sql.SQL, *names: str) -> None:
        self._run(statement.format(*map(sql.Identifier, names)))

    def _run(self, statement: sql.Composed) -> None:
        self._connection.execute(statement)
