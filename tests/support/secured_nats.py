"""A NATS that lets in only who has the right to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from infra.local.servers.nats import NatsServer, find_binary
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.system.processes import Launch
    from tests.support.certificates import Certificate


class SecuredNats(NatsServer):
    """A NATS server with a configuration file of the test's own."""

    def __init__(self, state: Path, configuration: str = "") -> None:
        super().__init__(state)
        self.configuration = configuration

    @property
    def address(self) -> str:
        """Where it listens, without a scheme."""
        return f"{HOST}:{self.port}"

    def _command(self, port: int) -> Launch:
        file = self.state / "nats.conf"
        file.write_text(self.configuration)
        options = ["--name", "secured", "--addr", HOST, "--port", str(port), "--config", str(file)]
        return dataclasses.replace(super()._command(port), command=[find_binary(), *options])


def user(name: str, password: str) -> str:
    """A configuration with one user."""
    return f'authorization {{ user: "{name}", password: "{password}" }}\n'


def tls(certificate: Certificate, *, more: str = "") -> str:
    """A configuration with TLS."""
    return f'tls {{ cert_file: "{certificate.file}", key_file: "{certificate.key}" }}\n{more}\n'
