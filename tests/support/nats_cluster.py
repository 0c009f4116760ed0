"""A cluster of three NATS servers with the users of a deployment, as production has it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Self

from infra.local.system.ports import HOST, find_free_port
from tests.support.nats_users import NatsWithUsers, UsersWithAdmin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.local.servers.nats_users import Names
    from infra.local.system.processes import Launch

SERVERS = 3


class _NodeUsers(UsersWithAdmin):
    """The users of the cluster, whose passwords are the same on all servers, and the configuration of one server."""

    def __init__(self, state: Path, cluster: UsersWithAdmin, listen: int, ports: Sequence[int]) -> None:
        super().__init__(state, cluster.names)
        self._cluster = cluster
        self._listen = listen
        self._routes = [f"nats://{HOST}:{port}" for port in ports if port != listen]

    @property
    def passwords(self) -> dict[str, str]:
        """The password of each user."""
        return self._cluster.passwords

    def configuration(self) -> str:
        """Return the configuration of the server."""
        cluster = f'name: test, listen: "{HOST}:{self._listen}", routes: {json.dumps(self._routes)}'
        return f"cluster {{ {cluster} }}\n{super().configuration()}"


class _Node(NatsWithUsers):
    def __init__(self, state: Path, cluster: UsersWithAdmin, listen: int, ports: Sequence[int]) -> None:
        super().__init__(state, cluster.names)
        self.users = _NodeUsers(self.state, cluster, listen, ports)

    def _command(self, port: int) -> Launch:
        launch = super()._command(port)
        return dataclasses.replace(launch, command=[*launch.command, "--name", self.state.name])


class NatsCluster:
    """The servers of the cluster, each with a state folder of its own below `state`."""

    def __init__(self, state: Path, names: Names) -> None:
        ports = [find_free_port() for _ in range(SERVERS)]
        users = UsersWithAdmin(state, names)
        self.nodes = [_Node(state / f"node-{number}", users, port, ports) for number, port in enumerate(ports)]

    def __enter__(self) -> Self:
        """Start all servers."""
        for node in self.nodes:
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all servers and delete their data."""
        for node in self.nodes:
            node.destroy()
