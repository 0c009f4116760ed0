"""Run a program to its end, with its output in a log, and never leave it running behind us."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from infra.local.errors import CommandError
from infra.local.system import files, temporary
from infra.local.system.processes import ProcessId, end, identify, spawn, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.local.system.processes import Launch


def installed(name: str) -> Path:
    """Name a program that the environment we run in brings."""
    return Path(sys.executable).with_name(name)


def run(launch: Launch, *, problem: str, hint: str = "", record: Path | None = None) -> None:
    """Run a program; an interrupt of ours ends its whole group, its failure is a `CommandError`.

    With a record, the next run also ends a program that was left behind because we were killed. Only for what
    runs under a lock: without one, the program on record may be another command's.
    """
    with uninterrupted():
        if record is not None:
            end_recorded(record)
        child = spawn(launch)
        process = identify(child.pid)
        if record is not None and process is not None:
            files.write_record(record, process._asdict())
    try:
        code = child.wait()
    except BaseException:
        if process:
            end(process, first=signal.SIGTERM, within=5)
        child.wait()
        raise
    finally:
        if record is not None:
            record.unlink(missing_ok=True)
    if code:
        raise CommandError(problem, log=launch.log, hint=hint)


def end_recorded(record: Path) -> None:
    """End a program that a killed command of ours has left behind."""
    if recorded := files.read_record(record):
        end(ProcessId(**recorded), first=signal.SIGTERM, within=5)
    record.unlink(missing_ok=True)


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by another program, which makes a temporary directory of its own if it needs one."""
    sys.stdout.flush()
    temporary.remove()
    os.execve(command[0], list(command), dict(environment))  # noqa: S606  # no shell
