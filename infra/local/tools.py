"""Run a program to its end, with its output in a log, and never leave it running behind us."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from infra.local.errors import LocalStackError
from infra.local.processes import ProcessId, end, identify, spawn, uninterrupted

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.processes import Launch


def run(launch: Launch, *, problem: str, hint: str = "", record: Path | None = None) -> None:
    """Run a program; an interrupt of ours ends its whole group, its failure is a `LocalStackError`.

    With a record, the next run also ends a program that was left behind because we were killed. Only for what
    runs under a lock: without one, the program on record may be another command's.
    """
    with uninterrupted():
        if record is not None:
            end_recorded(record)
        child = spawn(launch)
        process = identify(child.pid)
        if record is not None:
            record.write_text(json.dumps(process))
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
        raise LocalStackError(problem, log=launch.log, hint=hint)


def end_recorded(record: Path) -> None:
    """End a program that a killed command of ours has left behind."""
    try:
        recorded = json.loads(record.read_text())
    except (OSError, ValueError):
        return
    if recorded:
        end(ProcessId(*recorded), first=signal.SIGTERM, within=5)
    record.unlink(missing_ok=True)
