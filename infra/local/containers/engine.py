"""The container engine of this machine, for `sam local`: whether it answers, what it has, how it reaches the host."""

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
    "macOS, Windows: Docker Desktop), or set DOCKER_HOST to where your engine listens."
)


@dataclass(frozen=True)
class Bridge:
    """The network that containers are on unless told otherwise, and the host's address on it."""

    address: str
    network: ipaddress.IPv4Network


class Engine:
    """A Docker engine that answers; found as SAM finds it."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def has_image(self, name: str) -> bool:
        """Tell whether an image need not be pulled."""
        try:
            self._client.images.get(name)
        except ImageNotFound:
            return False
        return True

    def bridge(self) -> Bridge | None:
        """Give the bridge; none where the engine has a machine of its own and forwards to this one by itself."""
        if sys.platform != "linux" or "Docker Desktop" in self._client.info()["OperatingSystem"]:
            return None
        pools = self._client.networks.get("bridge").attrs["IPAM"]["Config"]
        for pool in pools:
            network = ipaddress.ip_network(pool["Subnet"])
            if isinstance(network, ipaddress.IPv4Network):
                return Bridge(pool.get("Gateway") or str(next(network.hosts())), network)
        raise CommandError("The engine's default network has no IPv4 address.", hint=HINT)


@contextlib.contextmanager
def connected() -> Iterator[Engine]:
    """Give the engine while inside; a `CommandError` that says what to do if none answers."""
    try:
        client = docker.from_env()
    except DockerException as error:
        raise CommandError(f"No container engine answers: {error}", hint=HINT) from error
    try:
        yield Engine(client)
    except DockerException as error:
        raise CommandError(f"The container engine failed: {error}", hint=HINT) from error
    finally:
        client.close()
