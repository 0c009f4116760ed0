"""A NATS server that requires credentials, TLS or both."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from infra.local.servers.nats import NatsServer, find_binary
from infra.local.servers.server import Server
from infra.local.system import files
from infra.local.system.ports import HOST
from tests.support.nats_accounts import SignedDeployment

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.servers.nats_users import Names
    from infra.local.system.processes import Launch
    from tests.support.certificates import Certificate


class SecuredNats(NatsServer):
    """NATS server with a configuration that the test writes."""

    def __init__(self, state: Path, configuration: str = "") -> None:
        super().__init__(state)
        self.configuration = configuration

    @property
    def url(self) -> str:
        """The address without credentials."""
        return f"nats://{self.address}"

    @property
    def address(self) -> str:
        """Host and port, without a scheme."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start the server unless it runs."""
        Server.start(self)

    def _prepare(self) -> None:
        files.write_private(self.users.file, self.configuration)

    def _command(self, port: int) -> Launch:
        options = ["--name", "secured", "--addr", HOST, "--port", str(port), "--config", str(self.users.file)]
        return dataclasses.replace(super()._command(port), command=[find_binary(), *options])


class SignedNats(SecuredNats):
    """NATS server with the signed accounts and users of a deployment, which have credentials files."""

    def __init__(self, state: Path, names: Names) -> None:
        self.signed = SignedDeployment(names)
        super().__init__(state, self.signed.server_configuration(state / "jetstream"))

    def login(self, user: str) -> dict[str, Any]:
        """Return the options with which nats-py connects as one user, or as ADMIN, who may do everything."""
        return {"servers": self.url, **self.signed.login(user)}


def user(name: str, password: str) -> str:
    """Return a configuration with one user."""
    return f'authorization {{ user: "{name}", password: "{password}" }}\n'


def tls(certificate: Certificate, *, more: str = "") -> str:
    """Return a configuration with TLS, followed by the configuration lines in `more`."""
    return f'tls {{ cert_file: "{certificate.file}", key_file: "{certificate.key}" }}\n{more}\n'
