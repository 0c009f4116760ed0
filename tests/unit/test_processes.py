"""The local stack signals only processes that it started, and it ends those for certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from infra.local.servers.group import ServerGroup
from infra.local.servers.nats import NatsServer
from infra.local.servers.postgres import PostgresServer
from infra.local.system import files, programs
from infra.local.system.processes import (
    Launch,
    ProcessId,
    group_members,
    identify,
    is_alive,
    spawn,
    stop_orphans,
    stop_process,
    wait_for,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IGNORE = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
LIMIT = 60  # seconds for what takes milliseconds


class Stranger:
    """A process of another program, which has a file of the state folder in its command line, as `tail` has."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    @property
    def is_unharmed(self) -> bool:
        """Whether it still responds; a signal takes effect before that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(b"?\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return self._process.stdout.readline() == b"?\n"


@contextmanager
def stranger(file: Path, *, group: int | None = None) -> Iterator[Stranger]:
    """Provide a stranger that leads a session, or is in a group of this session."""
    with subprocess.Popen(
        ["/bin/cat", "-", str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=group is None,
        process_group=group,
    ) as cat:
        other = Stranger(cat)
        try:
            yield other
        finally:
            other.end()


def _launch(folder: Path, *command: str | Path) -> Launch:
    return Launch(command=command, environment=os.environ, log=folder / "program.log", directory=folder)


@contextmanager
def _started(launch: Launch) -> Iterator[subprocess.Popen[bytes]]:
    """Provide a detached program; at the end, nothing of it is left, also after a failed test."""
    with spawn(launch) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _started_earlier(pid: int) -> ProcessId:
    """Return the identity of a process that had this id before."""
    process = identify(pid)
    assert process is not None
    boot, _, ticks = process.started.rpartition(":")
    return ProcessId(pid, f"{boot}:{int(ticks) - 1}" if ticks.isdigit() else "Thu Jan  1 00:00:00 2026")


def _stop_record(folder: Path, recorded: ProcessId) -> None:
    files.write_record(folder / "tool.json", recorded._asdict())
    programs.stop_recorded(folder / "tool.json")


def _stop_server(folder: Path, recorded: ProcessId) -> None:
    files.write_record(folder / "nats.json", {"port": 1, **recorded._asdict()})
    server = NatsServer(folder)
    assert not server.is_alive()
    server.stop()


def _kill_server(folder: Path, recorded: ProcessId) -> None:
    files.write_record(folder / "nats.json", {"port": 1, **recorded._asdict()})
    NatsServer(folder).kill()


def _stop_stack(folder: Path, recorded: ProcessId) -> None:
    group = ServerGroup(folder)
    for server in group.servers:
        server.state.mkdir()
        files.write_record(server.state / f"{server.name}.json", {"port": 1, **recorded._asdict()})
    group.down()


@pytest.mark.parametrize("stop", [_stop_record, _stop_server, _kill_server, _stop_stack])
def test_recorded_process_id_of_a_stranger_is_never_signalled(
    tmp_path: Path, stop: Callable[[Path, ProcessId], None]
) -> None:
    """The recorded process has ended, and the system gave its id to another one, which also leads a group."""
    with stranger(tmp_path / "nats.log") as other:
        stop(tmp_path, _started_earlier(other.pid))
        assert other.is_unharmed


def test_stranger_in_the_lock_file_of_postgresql_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """A crashed PostgreSQL leaves its process id in the lock file, where no start time identifies it."""
    server = PostgresServer(tmp_path / "postgres")
    data = server.folder / "data"
    data.mkdir(parents=True)
    try:
        with stranger(data / "server.log") as other:
            (data / "postmaster.pid").write_text(f"{other.pid}\n{data}\n1767225600\n5432\n")
            server.stop()
            assert not server.is_alive()
            assert other.is_unharmed
    finally:
        server.destroy()


def test_group_of_a_shell_with_the_id_of_an_ended_program_is_not_signalled(tmp_path: Path) -> None:
    """The first command of a pipeline had the id, and has ended; the second one still runs in its group."""
    with stranger(tmp_path, group=0) as first, stranger(tmp_path / "nats.log", group=first.pid) as second:
        recorded = _started_earlier(first.pid)
        first.end()
        stop_orphans(recorded, str(tmp_path))
        assert os.getpgid(second.pid) == first.pid
        assert second.is_unharmed


def test_process_that_a_crashed_server_left_is_stopped(tmp_path: Path) -> None:
    """It is in the group and the session of the server, and has its folder in the command line."""
    program = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)]
    leader = spawn(_launch(tmp_path, "/bin/sh", "-c", '"$@" & exit 0', "sh", *program))
    recorded = ProcessId(leader.pid, "ended")
    leader.wait(LIMIT)
    (left,) = wait_for(lambda: group_members(leader.pid), LIMIT)
    stop_orphans(recorded, str(tmp_path / "other"))
    assert identify(left) is not None
    stop_orphans(recorded, str(tmp_path))
    assert identify(left) is None


@pytest.mark.parametrize("ignored", [True, False])
def test_program_that_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path, ignored: bool) -> None:
    """SIGKILL follows SIGTERM, and the result says which of them was needed."""
    launch = _launch(tmp_path, sys.executable, "-c", IGNORE if ignored else IGNORE.replace("SIG_IGN", "SIG_DFL"))
    with _started(launch) as child:
        assert wait_until(lambda: launch.log.read_bytes() == b"ready\n", LIMIT)
        process = identify(child.pid)
        assert process is not None
        grace = 0.1 if ignored else LIMIT
        assert stop_process(process, signal_number=signal.SIGTERM, timeout=grace) == (not ignored)
        assert not is_alive(process)


def test_child_that_ignores_the_signal_does_not_outlive_its_program(tmp_path: Path) -> None:
    """A tool that is interrupted leaves nothing running, also if it ends at once and its child does not."""
    launch = _launch(tmp_path, "/bin/sh", "-c", '"$@" & wait', "sh", sys.executable, "-c", IGNORE)
    with _started(launch) as leader:
        assert wait_until(lambda: launch.log.read_bytes() == b"ready\n", LIMIT)
        process = identify(leader.pid)
        assert process is not None
        (child,) = set(group_members(leader.pid)) - {leader.pid}
        assert stop_process(process, signal_number=signal.SIGTERM, timeout=0.5)
        assert identify(child) is None
