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


def run(launch: Launch, *, problem: str, hint: str = "", record: Path | None = None) -> None:
    """Run a program and wait for its end; an interrupt stops its whole process group.

    Raises CommandError with `problem`, the log and `hint` if the program fails.

    With a `record` file, the next run first stops a program that a killed command left running. Use it only under a
    lock: otherwise the recorded program may belong to another command.
    """
    with defer_interrupts():
        if record is not None:
            stop_recorded(record)
        child = spawn(launch)
        process = identify(child.pid)
        if record is not None and process is not None:
            files.write_record(record, process._asdict())
    try:
        code = child.wait()
    except BaseException:
        if process:
            stop_process(process, signal_number=signal.SIGTERM, timeout=5)
        child.wait()
        raise
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
