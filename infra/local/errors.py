"""The error of the local stack and of the operator's commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class CommandError(Exception):
    """An expected failure, printed without a traceback: what failed, the end of the log, and what to try."""

    def __init__(self, message: str, *, log: Path | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.hint = hint
