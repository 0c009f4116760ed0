"""PostgreSQL and NATS from images, run by testcontainers.

`GRANTWIRE_TEST_POSTGRES_IMAGE` (default postgres:18) and `GRANTWIRE_TEST_NATS_IMAGE` (default nats:2.12) select the
images. `GRANTWIRE_TEST_NATS_IMAGE=embedded` uses the NATS server of the development environment instead.

Some container engines need settings of testcontainers:

- Its helper image is not available: `TESTCONTAINERS_RYUK_DISABLED=true`. A killed run then leaves containers behind.
- Published ports are reachable on the loopback interface only:
  `TESTCONTAINERS_CONNECTION_MODE=docker_host TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest
from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from infra.local.containers.engine import connect_engine
from infra.local.errors import CommandError
from infra.local.servers.postgres import SETTINGS, UNSAFE
from tests.support.backends import Embedded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.backends import Cluster, Nats

NATS_PORT = 4222


class Containers:
    """Servers from images."""

    def __init__(self) -> None:
        try:
            with connect_engine():
                pass
        except CommandError as error:
            raise pytest.UsageError(f"GRANTWIRE_TEST_BACKEND=containers: {error}") from error

    def clusters(self) -> dict[str, Callable[[], Cluster]]:
        """Return the PostgreSQL of the selected image."""
        image = os.environ.get("GRANTWIRE_TEST_POSTGRES_IMAGE", "postgres:18")
        return {image: partial(ContainerCluster, image)}

    def nats(self) -> Nats:
        """Return the NATS of the selected image."""
        image = os.environ.get("GRANTWIRE_TEST_NATS_IMAGE", "nats:2.12")
        return Embedded().nats() if image == "embedded" else ContainerNats(image)


class ContainerCluster:
    """PostgreSQL in a container, with the settings of the embedded one."""

    def __init__(self, image: str) -> None:
        settings = {**SETTINGS, **UNSAFE, "listen_addresses": "*"}
        del settings["unix_socket_directories"]  # the image's own scripts use the socket
        options = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        self._container = PostgresContainer(
            image, username="postgres", password="postgres", dbname="postgres", driver=None
        ).with_command(["postgres", *options])

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._container.start()

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""
        return urlunsplit(urlsplit(self._container.get_connection_url())._replace(path=f"/{database}"))

    def destroy(self) -> None:
        """Remove the container and its data."""
        self._container.stop()


class ContainerNats:
    """NATS with JetStream in a container."""

    def __init__(self, image: str) -> None:
        ready = LogMessageWaitStrategy("Server is ready")
        self._container = DockerContainer(image).with_command("-js").with_exposed_ports(NATS_PORT).waiting_for(ready)

    @property
    def url(self) -> str:
        """Address of the server."""
        host, port = self._container.get_container_host_ip(), self._container.get_exposed_port(NATS_PORT)
        return f"nats://{host}:{port}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._container.start()

    def destroy(self) -> None:
        """Remove the container and its streams."""
        self._container.stop()
