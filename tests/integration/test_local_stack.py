"""The local stack starts every server once, however often `make up` runs at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from infra.local.servers.group import ServerGroup
from infra.local.system import files
from infra.local.system.processes import wait_until
from tests.support.paths import ROOT
from tests.support.run import STATE, program_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAITING = "Waiting for another command in this checkout"
LIMIT = 90


class Up:
    """A running `make up`."""

    def __init__(self, state: Path, output: Path) -> None:
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.workers.local_stack", state],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=program_environment(),
                cwd=ROOT,
            )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    @property
    def servers(self) -> dict[str, int]:
        """The process ids of the servers, as soon as all of them run; empty before."""
        lines = [line for line in self.output.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
        return dict(json.loads(lines[0])) if lines else {}

    def waits(self) -> bool:
        """Wait until it waits for another one; return False if it does not."""
        return self._reaches(lambda: WAITING in self.output) and not self.servers

    def has_servers(self) -> bool:
        """Wait until its servers run; return False if it ends before."""
        return self._reaches(lambda: bool(self.servers))

    def _reaches(self, condition: Callable[[], bool]) -> bool:
        wait_until(lambda: condition() or bool(self.servers) or self.process.poll() is not None, LIMIT)
        return condition()


@pytest.fixture
def state() -> Iterator[Path]:
    """The state folder of a stack, which is stopped and deleted at the end."""
    folder = STATE / "two stacks"
    folder.mkdir(parents=True)
    yield folder
    for server in reversed(ServerGroup(folder).servers):
        server.destroy()


def test_second_make_up_waits_and_uses_the_servers_of_the_first(state: Path, tmp_path: Path) -> None:
    """Also if the first one is killed, and even if it did not yet record the PostgreSQL that it had started."""
    with ExitStack() as stack:

        def up(name: str) -> Up:
            started = Up(state, tmp_path / name)
            stack.enter_context(started.process)
            stack.callback(started.process.kill)
            return started

        first = up("first")
        assert first.has_servers(), first.output
        second = up("second")
        assert second.waits(), second.output
        record = state / "postgres" / "postgres.json"
        files.write_record(record, {"port": files.read_record(record)["port"]})
        first.process.kill()
        (state / "go").touch()
        assert second.process.wait(LIMIT) == 0, second.output
    assert files.read_record(state / "stack.json")["pids"] == second.servers == first.servers
