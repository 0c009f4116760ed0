"""Sources of the servers that tests run on; `GRANTWIRE_TEST_BACKEND` selects one.

- `embedded`, the default: PostgreSQL and NATS from wheels. Tests run on every PostgreSQL major version that is
  installed on this machine; with `GRANTWIRE_TEST_POSTGRES=newest`, on the newest one.
- `containers`: images that a container engine runs, see `tests.support.containers_backend`.
- `external`: a PostgreSQL at `GRANTWIRE_TEST_DATABASE_URL`, whose user may create databases and roles, and a NATS with
  JetStream at `GRANTWIRE_TEST_NATS_URL`.

Tests that stop, kill or freeze a server always use their own embedded one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit, urlunsplit

from infra.local.servers.postgres import UNSAFE, PostgresServer, list_installations
from infra.local.system.memory import in_memory
from tests.support.nats_users import NatsWithUsers
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.local.servers.installations import Installation


class Cluster(Protocol):
    """PostgreSQL server."""

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""

    def destroy(self) -> None:
        """Stop the server if this run started it."""


class Nats(Protocol):
    """NATS server with JetStream."""

    @property
    def url(self) -> str:
        """Address of the server."""

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""

    def destroy(self) -> None:
        """Stop the server if this run started it."""


class Backend(Protocol):
    """Source of servers."""

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """Return a factory for each PostgreSQL that the tests run on, by name."""

    def nats(self) -> Nats:
        """Return the NATS that the tests run on."""


def installations_by_name() -> dict[str, Installation]:
    """Return the installations of PostgreSQL that this run tests, by name, the newest first."""
    only_newest = os.environ.get("GRANTWIRE_TEST_POSTGRES") == "newest"
    by_name = {f"pg{installation.major}": installation for installation in reversed(list_installations())}
    return dict(sorted(by_name.items(), reverse=True)[: 1 if only_newest else None])


class Embedded:
    """Servers from wheels or installed on this machine, with settings that trade durability for speed."""

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """Return one PostgreSQL for each installed major version, the newest first."""
        return {
            name: partial(PostgresServer, in_memory(STATE) / name, binaries=installation.binaries, settings=UNSAFE)
            for name, installation in installations_by_name().items()
        }

    def nats(self) -> Nats:
        """Return the NATS server of the development environment, with the users of a deployment."""
        return NatsWithUsers(in_memory(STATE) / "nats")


class External:
    """Servers that run already and are not managed by the tests."""

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """Return the PostgreSQL at `GRANTWIRE_TEST_DATABASE_URL`."""
        return {"external": partial(ExternalCluster, os.environ["GRANTWIRE_TEST_DATABASE_URL"])}

    def nats(self) -> Nats:
        """Return the NATS at `GRANTWIRE_TEST_NATS_URL`."""
        return ExternalNats(os.environ["GRANTWIRE_TEST_NATS_URL"])


@dataclass(frozen=True, slots=True)
class ExternalCluster:
    """PostgreSQL that is not managed by the tests."""

    address: str

    def start(self) -> None:
        """Do nothing: the server runs already."""

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""
        return urlunsplit(urlsplit(self.address)._replace(path=f"/{database}"))

    def destroy(self) -> None:
        """Do nothing: the tests did not start the server."""


@dataclass(frozen=True, slots=True)
class ExternalNats:
    """NATS that is not managed by the tests."""

    url: str

    def start(self) -> None:
        """Do nothing: the server runs already."""

    def destroy(self) -> None:
        """Do nothing: the tests did not start the server."""


def select_backend() -> Backend:
    """Return the back end of this run.

    Raises ValueError if `GRANTWIRE_TEST_BACKEND` has an unknown value.
    """
    name = os.environ.get("GRANTWIRE_TEST_BACKEND", "embedded")
    if name == "embedded":
        return Embedded()
    if name == "external":
        return External()
    if name == "containers":
        from tests.support.containers_backend import Containers  # noqa: PLC0415  # slow to import, rarely needed

        return Containers()
    raise ValueError(f"GRANTWIRE_TEST_BACKEND must be embedded, containers or external, not {name!r}")
