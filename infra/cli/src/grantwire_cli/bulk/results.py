"""The result file of an import: JSON Lines in the order of the import's file.

    {"line": 2, "key": "p_456", "status_code": 200, "code": null, "replayed": false}

It is also where an interrupted import continues: lines with a result are skipped. A line that a killed import wrote in
part is removed first.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from grantwire_cli.errors import CommandError
from grantwire_cli.files import open_own

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = b'{"line": '


class ResultFile:
    """Reads the results of an earlier run in the order of the lines, then appends new ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = open_own(path)
        except OSError as error:
            raise CommandError(f"Could not open the result file {path}: {error.strerror}.") from error
        self.counts = {"applied": 0, "replayed": 0, "refused": 0}
        self._next: dict[str, Any] | None = None
        try:
            self._advance()
        except CommandError:
            self._file.close()
            raise

    def close(self) -> None:
        """Write everything to the disk, and close the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def has(self, line: int, key: str) -> bool:
        """Return whether the line has a result from an earlier run. Call it for each line, in order.

        Raises CommandError if the result belongs to another line or key: the file of the import has changed.
        """
        if self._next is None:
            return False
        if (self._next.get("line"), self._next.get("key")) != (line, key):
            problem = f"{self.path} has the results of another file, or of other lines (line {line})."
            hint = "Name another file with --results, or delete it; keys keep lines from taking effect twice."
            raise CommandError(problem, hint=hint, code="OTHER_RESULTS")
        self._count(self._next)
        self._advance()
        return True

    def add(self, line: int, key: str, result: dict[str, Any]) -> dict[str, Any]:
        """Append the result of a line and return the record."""
        response = result.get("response") or {}
        record = {
            "line": line,
            "key": key,
            "status_code": result["status_code"],
            "code": response.get("code"),
            "replayed": bool(result.get("replayed")),
        }
        if record["code"]:
            record["message"] = response.get("message")
        self._count(record)
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        return record

    def flush(self) -> None:
        """Hand what was added to the operating system, so that a kill of this process loses nothing."""
        self._file.flush()

    def _count(self, record: dict[str, Any]) -> None:
        refused = record.get("status_code") != 200  # noqa: PLR2004  # success
        self.counts["refused" if refused else "replayed" if record.get("replayed") else "applied"] += 1

    def _advance(self) -> None:
        """Read the next result; at the first incomplete one, cut the file there and continue by appending."""
        position = self._file.tell()
        text = self._file.readline()
        try:
            record = json.loads(text) if text.endswith(b"\n") else None
        except ValueError:
            record = None
        if isinstance(record, dict):
            self._next = record
            return
        self._next = None
        if text.endswith(b"\n") or not (text.startswith(BEGINNING) or BEGINNING.startswith(text)):
            raise CommandError(f"{self.path} is not a result file of an import.", code="OTHER_RESULTS")
        self._file.seek(position)
        self._file.truncate()
