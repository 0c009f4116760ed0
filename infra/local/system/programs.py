"""Run programs to completion, with their output in a log, and never leave one running."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from infra.local.errors import CommandError
from infra.local.system import files, temporary
from infra.local.system.processes import ProcessId, defer_interrupts, identify, spawn, stop_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.local.system.processes import Launch


def program_path(name: str) -> Path:
    """Return the path of a program of the active virtual environment."""
    return Path(sys.executable).with_name(name)


class Program:
    """A program with its output in a log. Start it inside `defer_interrupts`, and later `wait` for it or `stop` it."""

    def __init__(self, launch: Launch) -> None:
        self.log = launch.log
        self._child = spawn(launch)
        self.process = identify(self._child.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return self._child.poll()

    def wait(self) -> int:
        """Wait for the end of the program and return its exit code; an interrupt stops its whole process group."""
        try:
            return self._child.wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the whole process group of the program, if it still runs."""
        if self.process:
            stop_process(self.process, signal_number=signal.SIGTERM, timeout=5)
        self._child.wait()


def run(launch: Launch, *, problem: str, hint: str = "", record: Path | None = None) -> None:
    """Run a program and wait for its end; an interrupt stops its whole process group.

    Raises CommandError with `problem`, the log and `hint` if the program fails.

    With a `record` file, the next run first stops a program that a killed command left running. Use it only under a
    lock: otherwise the recorded program may belong to another command.
    """
    with defer_interrupts():
        if record is not None:
            stop_recorded(record)
        program = Program(launch)
        if record is not None and program.process is not None:
            files.write_record(record, program.process._asdict())
    try:
        code = program.wait()
    finally:
        if record is not None:
            record.unlink(missing_ok=True)
    if code:
        raise CommandError(problem, log=launch.log, hint=hint)


def stop_recorded(record: Path) -> None:
    """Stop the program in a record file, which a killed command left running."""
    if recorded := files.read_record(record):
        stop_process(ProcessId(**recorded), signal_number=signal.SIGTERM, timeout=5)
    record.unlink(missing_ok=True)


def replace_process(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with another program (execve).

    This process's temporary directory is removed first; the program creates its own if it needs one.
    """
    sys.stdout.flush()
    temporary.remove()
    os.execve(command[0], list(command), dict(environment))  # noqa: S606  # no shell
