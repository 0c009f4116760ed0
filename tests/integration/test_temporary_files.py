"""Servers keep temporary files in their own folders: nothing is left behind, in the system's directory or elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra.local.servers.emulator import EmulatorServer
from infra.local.servers.nats import NatsServer
from infra.local.servers.postgres import UNSAFE, PostgresServer
from infra.local.system.processes import HAS_PROC, Launch, group_members, spawn
from infra.local.toolchain.environments import EMULATOR
from tests.support.process_environment import read_environment
from tests.support.servers import STATE
from tests.support.valkey import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.local.servers.server import Server

ASK = "import tempfile; print(tempfile.gettempdir())"
ATTEMPTS = 3

SERVERS: dict[str, Callable[[Path], Server]] = {
    "postgres": lambda state: PostgresServer(state, settings=UNSAFE),
    "nats": NatsServer,
    "valkey": ValkeyServer,
    "emulator": EmulatorServer,
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each kind, in a folder with a space in its name, not started."""
    if request.param == "emulator" and not EMULATOR.python.exists():
        pytest.skip("the emulator is not installed")
    return SERVERS[request.param](STATE / "temporary files" / request.param)


def _system_directory() -> Path:
    """Where programs write that nobody has told anything else."""
    clean = {name: value for name, value in os.environ.items() if name not in {"TMPDIR", "TEMP", "TMP"}}
    asked = subprocess.run([sys.executable, "-c", ASK], env=clean, capture_output=True, text=True, check=True)
    return Path(asked.stdout.strip())


def test_a_server_has_a_temporary_directory_that_ends_with_it(server: Server) -> None:
    """It is the server's own account's, and also goes when the server is killed."""
    for end in (server.stop, server.kill):
        server.start()
        try:
            assert server.temporary.is_relative_to(server.state) or isinstance(server, PostgresServer)
            account = server._command(server.port).account  # noqa: SLF001  # whom it runs as
            launch = Launch(
                command=["/bin/sh", "-c", 'mkdir "$TMPDIR/written"'],
                environment={"TMPDIR": str(server.temporary)},
                log=server.state / "written.log",
                directory=Path("/"),
                account=account,
            )
            assert spawn(launch, detached=False).wait(30) == 0, launch.log.read_text()
            assert (server.temporary / "written").is_dir()
        finally:
            end()
        assert not server.temporary.exists()
    server.destroy()
    assert not server.state.exists()


@pytest.mark.skipif(not HAS_PROC, reason="only Linux shows a process's environment as a file")
@pytest.mark.parametrize(
    "server", sorted(SERVERS.keys() - {"valkey"}), indirect=True
)  # Valkey writes its title over it
def test_every_process_of_a_server_is_given_its_directory(server: Server) -> None:
    """Also those that the server starts itself, as PostgreSQL starts its workers."""
    server.start()
    try:
        assert server.pid is not None
        found = {pid: read_environment(pid) for pid in group_members(server.pid)}
        given = {pid: environment.get("TMPDIR") for pid, environment in found.items() if environment is not None}
        assert given[server.pid] == str(server.temporary)
        assert set(given.values()) == {str(server.temporary)}
    finally:
        server.destroy()


def test_nothing_appears_in_the_system_s_directory(server: Server) -> None:
    """Other programs of this machine write there too, but not in each of three attempts."""
    system = _system_directory()
    left: set[Path] = set()
    for _ in range(ATTEMPTS):
        before = set(system.iterdir())
        server.start()
        server.destroy()
        left = set(system.iterdir()) - before
        if not left:
            return
    pytest.fail(f"left behind: {sorted(left)}")
