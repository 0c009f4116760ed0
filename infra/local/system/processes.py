"""Start programs that outlive this process, and later stop exactly those.

A process id alone does not identify a process, because the system reuses it after the process has ended. A record
therefore also holds the start time, and a process is signalled only if both match.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from infra.local.system.files import open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

T = TypeVar("T")

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists()  # elsewhere `ps` is used, which small Linux images lack
ORPHAN_TIMEOUT_SECONDS = 3.0


class ProcessId(NamedTuple):
    """The identity of a process: its process id and its start time."""

    pid: int
    started: str


class Account(NamedTuple):
    """The unprivileged account that a server runs as if this process is root."""

    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The command, environment, log and account that a program is started with."""

    command: Sequence[str | Path]
    environment: Mapping[str, str]
    log: Path
    directory: Path
    account: Account | None = None


def spawn(launch: Launch, *, detached: bool = True) -> subprocess.Popen[bytes]:
    """Start a program and append its output to its log.

    A detached program has its own session, so that Ctrl-C in this terminal does not reach it.
    """
    account = launch.account
    with open_log(launch.log) as output:
        return subprocess.Popen(
            launch.command,
            env=dict(launch.environment),
            cwd=launch.directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=detached,
            user=account and account.uid,
            group=account and account.gid,
            extra_groups=account and [],
        )


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a running process, or None if it does not exist or is a zombie."""
    started = _started_by_proc(pid) if HAS_PROC else _started_by_ps(pid)
    return ProcessId(pid, started) if started else None


def is_alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs."""
    return identify(process.pid) == process


def command_line(pid: int) -> str:
    """Return the command line of a process, or an empty string if it does not exist."""
    if not HAS_PROC:
        return _ps(pid, "command")
    try:
        arguments = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(arguments).decode(errors="replace").strip()


def program_name(pid: int) -> str:
    """Return the file name of a process's program, or an empty string if it does not exist."""
    if not HAS_PROC:
        return Path(_ps(pid, "comm")).name
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def stop_process(process: ProcessId, *, signal_number: signal.Signals, timeout: float) -> bool:
    """Signal a process and the group that it leads; send SIGKILL to what still runs after `timeout` seconds.

    Return True if the first signal was enough for the process itself.
    """
    ended = False
    if is_alive(process):
        _signal_with_group(process, signal_number)
        ended = wait_until(lambda: not is_alive(process), timeout)
        if ended:
            stop_orphans(process, timeout=min(timeout, ORPHAN_TIMEOUT_SECONDS))
        else:
            _signal_with_group(process, signal.SIGKILL)
            wait_until(lambda: not is_alive(process), 5)
    return ended


def stop_orphans(leader: ProcessId, marker: str = "", *, timeout: float = ORPHAN_TIMEOUT_SECONDS) -> None:
    """Stop the remaining processes of the group of a detached program that has ended.

    The system may have reused the id of the program, and so of its group and session, after all of them had ended. Then
    no process is signalled. If it has also ended again, `marker` in the command line shows which processes are ours.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if identify(leader.pid) not in {None, leader}:
            return
        orphans = [identify(pid) for pid in group_members(leader.pid) if marker in command_line(pid)]
        for process in filter(None, orphans):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        if wait_until(lambda: not any(is_alive(process) for process in orphans if process), timeout):  # noqa: B023
            return


def group_members(leader: int) -> list[int]:
    """Return the ids of the processes in the group and the session that a detached program leads, or led.

    The groups of a user's shell are not of this kind: their session is that of the shell.
    """
    if HAS_PROC:
        pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if _stat(pid)[2:4] == [str(leader)] * 2]
    ps = subprocess.run(["ps", "-A", "-o", "pid=,pgid="], capture_output=True, text=True, check=False)  # noqa: S607
    pairs = (line.split() for line in ps.stdout.splitlines())
    return [int(pid) for pid, pgid in pairs if int(pgid) == leader and _session(int(pid)) == leader]


def wait_for(poll: Callable[[], T], timeout: float, every: float = 0.02) -> T:
    """Call `poll` every `every` seconds until its result is truthy, and return that result.

    After `timeout` seconds, return the last result.
    """
    deadline = time.monotonic() + timeout
    while not (result := poll()) and time.monotonic() < deadline:
        time.sleep(every)
    return result


def wait_until(condition: Callable[[], bool], timeout: float, every: float = 0.02) -> bool:
    """Wait until a condition is true, and return whether it was within `timeout` seconds."""
    return wait_for(condition, timeout, every)


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block, so that no server is started without being recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred: list[int] = []

    def defer(number: int, _frame: FrameType | None) -> None:
        deferred.append(number)

    previous = {number: signal.signal(number, defer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if deferred:
            signal.raise_signal(deferred[0])


def _signal_with_group(process: ProcessId, number: signal.Signals) -> None:
    """Signal a running process, and its group if it leads one. It may have been started in the group of a shell."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _stat(pid: int) -> list[str]:
    """Return the fields after the process name, which may contain spaces: state, parent, group, session, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started_by_proc(pid: int) -> str:
    fields = _stat(pid)
    if not fields or fields[0] in "ZX":
        return ""
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{fields[19]}"  # clock ticks since boot


def _started_by_ps(pid: int) -> str:
    return "" if _ps(pid, "stat").startswith("Z") else _ps(pid, "lstart")


def _ps(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
