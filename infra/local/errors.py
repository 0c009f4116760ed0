"""What can go wrong with the local stack in ways that a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class CommandError(Exception):
    """An expected failure: shown as a message with the log that explains it, without a traceback."""

    def __init__(self, message: str, *, log: Path | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.hint = hint
