"""The base class of PostgreSQL, NATS and the emulator: a port, a log and a record of the running process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from infra.local.errors import CommandError
from infra.local.system import files, temporary, unprivileged
from infra.local.system.ports import find_free_port, is_port_free
from infra.local.system.processes import (
    Launch,
    ProcessId,
    defer_interrupts,
    identify,
    is_alive,
    spawn,
    stop_orphans,
    stop_process,
    wait_until,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

MAX_LOG_BYTES = 10_000_000


class Server(ABC):
    """A server that runs in the background and keeps its state in its own folder.

    The object is only a view of that folder: another object on the same folder sees and stops the same process.
    """

    name: ClassVar[str]
    port_variable: ClassVar[str]
    ready_timeout: ClassVar[float] = 30.0
    runs_unprivileged: ClassVar[bool] = False  # whether it runs as another account if this process is root
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    kill_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, state: Path, *, port: int | None = None) -> None:
        self.state = state.absolute()
        self.log = self.state / f"{self.name}.log"
        self._fixed_port = port
        self._record = self.state / f"{self.name}.json"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port in use, or the last one, which the next start uses again if it is still free."""
        return int(self._read().get("port", self._fixed_port or 0))

    @property
    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        process = self._process()
        return process.pid if process else None

    @property
    def temporary(self) -> Path:
        """The temporary directory of the server and of the programs that it starts; removed when it stops."""
        return self.state / "tmp"

    def is_alive(self) -> bool:
        """Return whether the server's process runs."""
        return self._process() is not None

    def start(self) -> None:
        """Start the server unless it runs, and return when it is ready.

        Raises CommandError with the server's log if it ends or is not ready in time.
        """
        self._make_folder()
        self._adopt_unrecorded()
        if self.is_alive() and self._fixed_port in (None, self.port) and self._wait_until_ready():
            return
        self.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self._prepare()
        for port in self._candidate_ports():
            self._rotate_log()
            self._launch(port)
            if self._wait_until_ready():
                return
        raise CommandError(f"{self.name} could not find a free port.", log=self.log)

    def stop(self) -> None:
        """Stop the server and its remaining processes; keep its data."""
        self._stop(self.stop_signal, timeout=20)

    def kill(self) -> None:
        """Stop the server as a crash would."""
        self._stop(self.kill_signal, timeout=10)

    def restart(self) -> None:
        """Stop the server and start it again on the same port."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the server, because a stop would first save what is deleted here, and delete its data."""
        self.kill()
        shutil.rmtree(self.state, ignore_errors=True)

    @abstractmethod
    def _command(self, port: int) -> Launch:
        """Return how to start the server on a port."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the running server accepts requests."""

    def _make_folder(self) -> None:
        """Create the state folder, which other accounts cannot read: its files contain passwords and data."""
        mode = unprivileged.enterable_mode() if self.runs_unprivileged else files.PRIVATE_FOLDER
        files.make_private_folder(self.state, mode)

    def _prepare(self) -> None:  # noqa: B027  # most servers have nothing to prepare
        """Prepare the state folder before a start."""

    def _adopt_unrecorded(self) -> None:  # noqa: B027  # most servers write no process id of their own
        """Record a server that runs without a record, because its start was killed."""

    def _on_stopped(self, *, cleanly: bool) -> None:  # noqa: B027  # most servers have nothing to do
        """Handle the end of the server; `cleanly` if the stop signal was enough."""

    def _candidate_ports(self) -> Iterator[int]:
        """Yield the fixed port; without one, the last port, so that addresses stay the same, then free ones."""
        if self._fixed_port:
            if not is_port_free(self._fixed_port):
                hint = f"Set {self.port_variable} to another port, or unset it to get a free one."
                raise CommandError(f"Port {self._fixed_port} for {self.name} is already in use.", hint=hint)
            yield self._fixed_port
            return
        if self.port and is_port_free(self.port):
            yield self.port
        for _ in range(3):
            yield find_free_port()

    def _launch(self, port: int) -> None:
        launch = self._command(port)
        with defer_interrupts():
            self._child = self._spawn(launch)
            self._save_record(self._child.pid, port)

    def _program(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> Launch:
        """Return how to start a program in the server's folder, with a minimal environment."""
        variables = {**base_environment(), **(environment or {})}
        return Launch(command=command, environment=variables, log=self.log, directory=self.state)

    def _spawn(self, launch: Launch, *, detached: bool = True) -> subprocess.Popen[bytes]:
        """Start one of the server's programs with the server's temporary directory."""
        temporary.make(self.temporary, launch.account)
        environment = {**launch.environment, temporary.VARIABLE: str(self.temporary)}
        return spawn(dataclasses.replace(launch, environment=environment), detached=detached)

    def _save_record(self, pid: int, port: int) -> None:
        process = identify(pid)
        self._write({"port": port} if process is None else {"port": port, **process._asdict()})

    def _wait_until_ready(self) -> bool:
        """Wait until the server is ready. Return False if another process took the port, so that the next is tried."""
        if wait_until(lambda: self._is_ready() or not self.is_alive(), self.ready_timeout) and self.is_alive():
            return True
        has_ended = not self.is_alive()
        self.stop()
        if has_ended and not self._fixed_port and not is_port_free(self.port):
            return False
        problem = "ended while it started" if has_ended else f"was not ready within {self.ready_timeout:.0f} s"
        raise CommandError(f"{self.name} {problem}.", log=self.log)

    def _stop(self, signal_number: signal.Signals, *, timeout: float) -> None:
        self._adopt_unrecorded()
        record = self._read()
        if "pid" not in record:
            return
        process = ProcessId(record["pid"], record["started"])
        ended_on_signal = stop_process(process, signal_number=signal_number, timeout=timeout)
        stop_orphans(process, str(self.state))
        if self._child is not None:
            self._child.wait(timeout=5)
            self._child = None
        shutil.rmtree(self.temporary, ignore_errors=True)
        self._write({"port": record["port"]})
        self._on_stopped(cleanly=ended_on_signal and signal_number == self.stop_signal)

    def _process(self) -> ProcessId | None:
        record = self._read()
        process = ProcessId(record["pid"], record["started"]) if "pid" in record else None
        return process if process and is_alive(process) else None

    def _read(self) -> dict[str, Any]:
        return files.read_record(self._record)

    def _write(self, record: dict[str, Any]) -> None:
        files.write_record(self._record, record)

    def _rotate_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))


def base_environment() -> dict[str, str]:
    """Return a minimal environment for a server, without the user's own settings."""
    inherited = ("PATH", "HOME", "LANG", "TZ", "SYSTEMROOT")
    return {name: os.environ[name] for name in inherited if name in os.environ}
