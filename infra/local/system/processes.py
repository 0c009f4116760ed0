"""Start programs that outlive us, and later end those and no others.

A process id alone is no identity: the system gives it to somebody else after the process ended. So the record
holds the moment at which the process started too, and a process is signalled only while both agree.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

T = TypeVar("T")

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists()  # Linux, where a small image may lack the `ps` used elsewhere


class ProcessId(NamedTuple):
    """A process as it can be recognised later: its number and when it started."""

    pid: int
    started: str


class Account(NamedTuple):
    """The unprivileged account that a server runs as when we are root."""

    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start one program."""

    command: Sequence[str | Path]
    environment: Mapping[str, str]
    log: Path
    directory: Path
    account: Account | None = None


def spawn(launch: Launch, *, detached: bool = True) -> subprocess.Popen[bytes]:
    """Start a program; detached, in a session of its own, which a Ctrl-C in our terminal does not reach."""
    account = launch.account
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    with launch.log.open("ab") as output:
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
    """Give the identity of a running process; none if there is no such process or it is a zombie."""
    started = _started_by_proc(pid) if HAS_PROC else _started_by_ps(pid)
    return ProcessId(pid, started) if started else None


def alive(process: ProcessId) -> bool:
    """Tell whether this very process still runs."""
    return identify(process.pid) == process


def command_line(pid: int) -> str:
    """Give a process's command line; empty if there is no such process."""
    if not HAS_PROC:
        return _ps(pid, "command")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def end(process: ProcessId, *, first: signal.Signals, within: float) -> bool:
    """Ask a process and its group to end; after `within` seconds insist. True if asking was enough."""
    for number, patience in ((first, within), (signal.SIGKILL, 5)):
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            if wait_until(lambda: not alive(process), patience):
                return number == first
    return False


def sweep_group(group: int, marker: str) -> None:
    """End what is left of a group whose leader has gone.

    By then the group's number may be somebody else's, so only processes whose command line holds our marker.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [identify(pid) for pid in group_members(group) if marker in command_line(pid)]
        for process in filter(None, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        if wait_until(lambda: not any(alive(process) for process in left if process), 3):  # noqa: B023
            return


def group_members(group: int) -> list[int]:
    """List the processes of a process group."""
    if HAS_PROC:
        pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if _stat(pid)[2:3] == [str(group)]]
    ps = subprocess.run(["ps", "-A", "-o", "pid=,pgid="], capture_output=True, text=True, check=False)  # noqa: S607
    pairs = (line.split() for line in ps.stdout.splitlines())
    return [int(pid) for pid, pgid in pairs if int(pgid) == group]


def wait_for(look: Callable[[], T], within: float, every: float = 0.02) -> T:
    """Look until there is something, and give it; after `within` seconds, give what there is then."""
    deadline = time.monotonic() + within
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(every)
    return found


def wait_until(condition: Callable[[], bool], within: float, every: float = 0.02) -> bool:
    """Wait until a condition holds; tell whether it did in time."""
    return wait_for(condition, within, every)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM, so that no server is started without being recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def _stat(pid: int) -> list[str]:
    """Read the fields after the name, which may hold spaces itself: state, parent, group, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started_by_proc(pid: int) -> str:
    fields = _stat(pid)
    if not fields or fields[0] in "ZX":
        return ""
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{fields[19]}"  # in clock ticks since that boot


def _started_by_ps(pid: int) -> str:
    return "" if _ps(pid, "stat").startswith("Z") else _ps(pid, "lstart")


def _ps(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
