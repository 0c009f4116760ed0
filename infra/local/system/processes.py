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


def stop_process(process: ProcessId, *, signal_number: signal.Signals, timeout: float) -> bool:
    """Signal a process and its group; send SIGKILL if the process still runs after `timeout` seconds.

    Return True if the first signal was enough.
    """
    for number, seconds in ((signal_number, timeout), (signal.SIGKILL, 5)):
        if is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            if wait_until(lambda: not is_alive(process), seconds):
                return number == signal_number
    return False


def stop_orphans(group: int, marker: str) -> None:
    """Stop the remaining processes of a group whose leader has ended.

    The system may have reused the group id, so only processes with `marker` in their command line are signalled.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        orphans = [identify(pid) for pid in group_members(group) if marker in command_line(pid)]
        for process in filter(None, orphans):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        if wait_until(lambda: not any(is_alive(process) for process in orphans if process), 3):  # noqa: B023
            return


def group_members(group: int) -> list[int]:
    """Return the process ids of a process group."""
    if HAS_PROC:
        pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if _stat(pid)[2:3] == [str(group)]]
    ps = subprocess.run(["ps", "-A", "-o", "pid=,pgid="], capture_output=True, text=True, check=False)  # noqa: S607
    pairs = (line.split() for line in ps.stdout.splitlines())
    return [int(pid) for pid, pgid in pairs if int(pgid) == group]


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


def _stat(pid: int) -> list[str]:
    """Return the fields after the process name, which may contain spaces: state, parent, group, ..."""
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
