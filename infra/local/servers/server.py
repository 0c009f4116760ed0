"""What PostgreSQL, NATS and the emulator have in common: a port, a log, a record of the running process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from infra.local.errors import CommandError
from infra.local.system import files, temporary
from infra.local.system.ports import free_port, port_free
from infra.local.system.processes import (
    Launch,
    ProcessId,
    alive,
    end,
    identify,
    spawn,
    sweep_group,
    uninterrupted,
    wait_until,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

LOG_LIMIT = 10_000_000


class Server(ABC):
    """A server that runs in the background, in a folder of its own.

    The object is only a view: whoever makes another one on the same folder sees and ends the same process.
    """

    name: ClassVar[str]
    port_variable: ClassVar[str]
    ready_within: ClassVar[float] = 30.0
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
        """The port in use, or the one used last, which the next start takes again if it is still free."""
        return int(self._read().get("port", self._fixed_port or 0))

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        process = self._process()
        return process.pid if process else None

    @property
    def temporary(self) -> Path:
        """The temporary directory of the server and of the programs that it starts: it ends with the server."""
        return self.state / "tmp"

    def alive(self) -> bool:
        """Tell whether the server's process runs."""
        return self._process() is not None

    def start(self) -> None:
        """Start the server unless it runs, and return when it serves."""
        self.state.mkdir(parents=True, exist_ok=True)
        self._adopt()
        if self.alive() and self._fixed_port in (None, self.port) and self._await_ready():
            return
        self.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self._prepare()
        for port in self._candidate_ports():
            self._rotate_log()
            self._launch(port)
            if self._await_ready():
                return
        raise CommandError(f"{self.name} found no free port.", log=self.log)

    def stop(self) -> None:
        """End the server, and anything that it left behind; its data stay."""
        self._end(self.stop_signal, within=20)

    def kill(self) -> None:
        """End the server as a crash would."""
        self._end(self.kill_signal, within=10)

    def restart(self) -> None:
        """Stop and start again, on the same port."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Stop, and delete the server's data."""
        self.stop()
        shutil.rmtree(self.state, ignore_errors=True)

    @abstractmethod
    def _command(self, port: int) -> Launch:
        """Say how to start the server on a port."""

    @abstractmethod
    def _ready(self) -> bool:
        """Tell whether the running server serves."""

    def _prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Do what must be done before a start."""

    def _adopt(self) -> None:  # noqa: B027  # most leave no trace to recognise them by
        """Recognise a server that runs without a record of it."""

    def _ended(self, *, properly: bool) -> None:  # noqa: B027  # most have nothing to note
        """Note how the server ended: by itself when it was asked to, or not."""

    def _candidate_ports(self) -> Iterator[int]:
        """Give the port that was asked for; else the last one, so that addresses stay; else new ones."""
        if self._fixed_port:
            if not port_free(self._fixed_port):
                hint = f"Choose another one with {self.port_variable}=…, or unset it to get a free one."
                raise CommandError(f"Port {self._fixed_port} for {self.name} is taken.", hint=hint)
            yield self._fixed_port
            return
        if self.port and port_free(self.port):
            yield self.port
        for _ in range(3):
            yield free_port()

    def _launch(self, port: int) -> None:
        launch = self._command(port)
        with uninterrupted():
            self._child = self._spawn(launch)
            self._remember(self._child.pid, port)

    def _program(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> Launch:
        """Describe a program that runs in the server's folder, with the little that it needs of our environment."""
        variables = {**base_environment(), **(environment or {})}
        return Launch(command=command, environment=variables, log=self.log, directory=self.state)

    def _spawn(self, launch: Launch, *, detached: bool = True) -> subprocess.Popen[bytes]:
        """Start one of the server's programs, with the server's temporary directory."""
        temporary.make(self.temporary, launch.account)
        environment = {**launch.environment, temporary.VARIABLE: str(self.temporary)}
        return spawn(dataclasses.replace(launch, environment=environment), detached=detached)

    def _remember(self, pid: int, port: int) -> None:
        process = identify(pid)
        self._write({"port": port} if process is None else {"port": port, **process._asdict()})

    def _await_ready(self) -> bool:
        """Wait until the server serves. False: somebody took its port meanwhile, so try another one."""
        if wait_until(lambda: self._ready() or not self.alive(), self.ready_within) and self.alive():
            return True
        ended = not self.alive()
        self.stop()
        if ended and not self._fixed_port and not port_free(self.port):
            return False
        problem = "ended at its start" if ended else f"was not ready within {self.ready_within:.0f} s"
        raise CommandError(f"{self.name} {problem}.", log=self.log)

    def _end(self, number: signal.Signals, *, within: float) -> None:
        self._adopt()
        record = self._read()
        if "pid" not in record:
            return
        process = ProcessId(record["pid"], record["started"])
        asked = end(process, first=number, within=within)
        sweep_group(process.pid, str(self.state))
        if self._child is not None:
            self._child.wait(timeout=5)
            self._child = None
        shutil.rmtree(self.temporary, ignore_errors=True)
        self._write({"port": record["port"]})
        self._ended(properly=asked and number == self.stop_signal)

    def _process(self) -> ProcessId | None:
        record = self._read()
        process = ProcessId(record["pid"], record["started"]) if "pid" in record else None
        return process if process and alive(process) else None

    def _read(self) -> dict[str, Any]:
        return files.read_record(self._record)

    def _write(self, record: dict[str, Any]) -> None:
        files.write_record(self._record, record)

    def _rotate_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_LIMIT:
                self.log.replace(self.log.with_suffix(".log.1"))


def base_environment() -> dict[str, str]:
    """Give a server's environment: the little that a program needs, none of the person's settings."""
    kept = ("PATH", "HOME", "LANG", "TZ", "SYSTEMROOT")
    return {name: os.environ[name] for name in kept if name in os.environ}
