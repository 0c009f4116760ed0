"""Servers keep temporary files in their own folders, remove them, and do not use the system's directory."""

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

PRINT_DIRECTORY = "import tempfile; print(tempfile.gettempdir())"
MAX_ATTEMPTS = 3

SERVERS: dict[str, Callable[[Path], Server]] = {
    "postgres": lambda state: PostgresServer(state, settings=UNSAFE),
    "nats": NatsServer,
    "valkey": ValkeyServer,
    "emulator": EmulatorServer,
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """A server of each type, not started, in a folder with a space in its name."""
    if request.param == "emulator" and not EMULATOR.python.exists():
        pytest.skip("the emulator is not installed")
    return SERVERS[request.param](STATE / "temporary files" / request.param)


def _system_directory() -> Path:
    """Return the default temporary directory of programs."""
    environment = {name: value for name, value in os.environ.items() if name not in {"TMPDIR", "TEMP", "TMP"}}
    command = [sys.executable, "-c", PRINT_DIRECTORY]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Path(result.stdout.strip())


def test_temporary_directory_of_a_server_is_removed_when_it_stops(server: Server) -> None:
    """The server's account can write to it. It is also removed when the server is killed."""
    for stop in (server.stop, server.kill):
        server.start()
        try:
            assert server.temporary.is_relative_to(server.state) or isinstance(server, PostgresServer)
            account = server._command(server.port).account  # noqa: SLF001  # the account that it runs as
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
            stop()
        assert not server.temporary.exists()
    server.destroy()
    assert not server.state.exists()


@pytest.mark.skipif(not HAS_PROC, reason="only Linux shows a process's environment as a file")
@pytest.mark.parametrize(
    "server", sorted(SERVERS.keys() - {"valkey"}), indirect=True
)  # Valkey overwrites its environment with its process title
def test_every_process_of_a_server_uses_its_directory(server: Server) -> None:
    """This includes processes that the server starts, such as PostgreSQL's workers."""
    server.start()
    try:
        assert server.pid is not None
        found = {pid: read_environment(pid) for pid in group_members(server.pid)}
        given = {pid: environment.get("TMPDIR") for pid, environment in found.items() if environment is not None}
        assert given[server.pid] == str(server.temporary)
        assert set(given.values()) == {str(server.temporary)}
    finally:
        server.destroy()


def test_server_writes_nothing_to_the_system_directory(server: Server) -> None:
    """Other programs of this machine also write there, but hardly during each of three attempts."""
    system = _system_directory()
    new_files: set[Path] = set()
    for _ in range(MAX_ATTEMPTS):
        before = set(system.iterdir())
        server.start()
        server.destroy()
        new_files = set(system.iterdir()) - before
        if not new_files:
            return
    pytest.fail(f"new files: {sorted(new_files)}")
