"""An export: all entitlements, page by page, in constant memory.

An export to a file writes `FILE.part` and, after each page, `FILE.part.json` with the position. An interrupted export
continues there. The complete file gets its name at the end, so that a file of that name is always complete.

A spreadsheet executes a cell that begins like a formula. In CSV such a cell therefore gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from typing import TYPE_CHECKING, Any

from grantwire_cli.bulk.fields import FIELDS
from grantwire_cli.bulk.lines import Format
from grantwire_cli.errors import CommandError
from grantwire_cli.files import open_own, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from grantwire_cli.api import Api

PATH = "/v1/snapshot"
PAGE_SIZE = 1000
COLUMNS = ("user_id", "stock_keeping_unit", "status", "version", "updated_at", *FIELDS)

# Where a formula can begin: in a cell, and after a semicolon, at which some languages separate cells. Some spreadsheets
# remove white space before it. The letters are those that they accept, also in full width. An apostrophe is in the list
# so that the original can be restored.
_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20'])")


def pages(api: Api, after: str | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the pages of the snapshot after a position."""
    while True:
        page = api.get(PATH, after=after, limit=PAGE_SIZE)
        yield page
        after = page.get("next_after")
        if after is None:
            return


def encode(format_: Format, entitlements: Sequence[Mapping[str, Any]], *, heading: bool) -> str:
    """Return entitlements as text; `heading` adds the heading of CSV."""
    if format_ is Format.jsonl:
        return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in entitlements)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if heading:
        writer.writerow(COLUMNS)
    writer.writerows([_to_cell(item.get(column)) for column in COLUMNS] for item in entitlements)
    return text.getvalue()


def _to_cell(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula."""
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value


class ExportFile:
    """The file of an export, which an interrupted export leaves in a state that the next one continues."""

    def __init__(self, path: Path, format_: Format, source: str) -> None:
        self.path = path
        self._format = format_
        self._source = source
        self._part = path.with_name(f"{path.name}.part")
        self._position = path.with_name(f"{path.name}.part.json")

    def run(self, api: Api, on_lines: Callable[[int], None]) -> tuple[int, str]:
        """Write all pages; return the number of entitlements and the cursor to continue with in the change feed."""
        position = self._read_position()
        count, cursor = int(position["count"]), ""
        try:
            with open_own(self._part) as file:
                file.truncate(int(position["bytes"]))
                file.seek(0, os.SEEK_END)
                on_lines(count)
                for page in pages(api, position["after"]):
                    heading = file.tell() == 0
                    file.write(encode(self._format, page["entitlements"], heading=heading).encode())
                    file.flush()
                    count += len(page["entitlements"])
                    cursor = page["changes_after"]
                    self._write_position(after=page.get("next_after"), size=file.tell(), count=count)
                    on_lines(len(page["entitlements"]))
                os.fsync(file.fileno())
            self._part.replace(self.path)
        except OSError as error:
            raise CommandError(f"Could not write {self.path}: {error.strerror}.") from error
        self._position.unlink(missing_ok=True)
        return count, cursor

    def _read_position(self) -> dict[str, Any]:
        """Return where an interrupted export of the same kind stopped; the beginning if there is none."""
        beginning = {"after": None, "bytes": 0, "count": 0}
        try:
            with open_own(self._position, create=False) as file:
                position = json.load(file)
            same = (position["source"], position["format"]) == (self._source, self._format.value)
            complete = self._part.stat().st_size >= position["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return beginning
        return position if same and complete and position.get("after") else beginning

    def _write_position(self, *, after: str | None, size: int, count: int) -> None:
        position = {"after": after, "bytes": size, "count": count, "format": self._format.value, "source": self._source}
        write_private(self._position, json.dumps(position))
