"""The container engine that `sam local` uses: its images and its network."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import docker
from docker.errors import DockerException, ImageNotFound

from infra.local.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

HINT = (
    "`sam local` runs functions in containers. Install and start Docker (Debian, Ubuntu: apt install docker.io - "
    "macOS, Windows: Docker Desktop), or set DOCKER_HOST to the address of your engine."
)


@dataclass(frozen=True)
class Bridge:
    """The default network of containers, and the host's address on it."""

    address: str
    network: ipaddress.IPv4Network


class Engine:
    """A connected Docker engine, the same one that SAM uses."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def has_image(self, name: str) -> bool:
        """Return whether an image is present and need not be pulled."""
        try:
            self._client.images.get(name)
        except ImageNotFound:
            return False
        return True

    def bridge(self) -> Bridge | None:
        """Return the bridge, or None if the engine runs in a virtual machine and forwards to this host on its own."""
        if sys.platform != "linux" or "Docker Desktop" in self._client.info()["OperatingSystem"]:
            return None
        pools = self._client.networks.get("bridge").attrs["IPAM"]["Config"]
        for pool in pools:
            network = ipaddress.ip_network(pool["Subnet"])
            if isinstance(network, ipaddress.IPv4Network):
                return Bridge(pool.get("Gateway") or str(next(network.hosts())), network)
        raise CommandError("The engine's default network has no IPv4 address.", hint=HINT)


@contextlib.contextmanager
def connect_engine() -> Iterator[Engine]:
    """Provide the engine inside the block.

    Raises CommandError, with a hint, if no engine responds or if it fails inside the block.
    """
    try:
        client = docker.from_env()
    except DockerException as error:
        raise CommandError(f"No container engine responds: {error}", hint=HINT) from error
    try:
        yield Engine(client)
    except DockerException as error:
        raise CommandError(f"The container engine failed: {error}", hint=HINT) from error
    finally:
        client.close()
