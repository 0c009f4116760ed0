"""Results on standard output, and everything else on standard error.

A terminal and a pipe get the same view for people. In a pipe it has no colours, and its lines are as long as they must
be, so that a row of a table is one line. With `--json`, results are JSON. Control characters in text of the
installation are made visible, so that a user id or an error message cannot send commands to the terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from grantwire_cli.times import human_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

STYLES = {
    "ACTIVE": "green",
    "REVOKED": "red",
    "EXPIRED": "yellow",
    "SCHEDULED": "cyan",
    "NONE": "dim",
    "PENDING": "cyan",
    "RUNNING": "cyan",
    "DONE": "green",
    "SENT": "green",
    "PUBLISHED": "green",
    "FAILED": "red",
    "OPEN": "red",
    "up": "green",
    "down": "red",
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
    "yes": "green",
    "no": "red",
}
UNBROKEN = {"dead_letter_id", "command_id", "client_id", "event_id", "operation", "state"}
# The last part of the names that have a time: closed_at, since, cache_until.
_TIME = re.compile(r"(.*[._])?(at|since|until|time)")
# Wider than every line of a result.
_PIPE_WIDTH = 100_000
# Control characters, and those that reorder or hide text.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: object) -> str:
    """Return text with each control character as its escape sequence."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), _plain(text))


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _to_json(value: object, indent: int | None = None) -> str:
    """Return JSON, in which control characters are escaped also where JSON does not demand it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _INVISIBLE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def shown(name: str, value: object) -> object:
    """Return the value of a field as people see it: a time in the one format of this command."""
    return human_time(value) if isinstance(value, str) and _TIME.fullmatch(name) else value


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as with every reader that has gone away."""
        raise BrokenPipeError


class Output:
    """Prints results and messages of one command."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        no_color: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        no_color = no_color or bool(os.environ.get("NO_COLOR"))
        options: dict[str, Any] = {"no_color": no_color, "highlight": False, "markup": False, "emoji": False}
        self.is_terminal = self._stdout.isatty()
        self.console = _Console(file=self._stdout, width=None if self.is_terminal else _PIPE_WIDTH, **options)
        self.messages = _Console(file=stderr or sys.stderr, soft_wrap=True, **options)

    def json(self, value: object) -> None:
        """Print a value as JSON: indented on a terminal, one line in a pipe."""
        self.line(_to_json(value, indent=2 if self.is_terminal else None))

    def json_line(self, value: object) -> None:
        """Print a value as one line of JSON, for an endless result."""
        self.line(_to_json(value))

    def line(self, text: str = "") -> None:
        """Print a line as it is, without wrapping or colours."""
        self._stdout.write(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") + "\n")
        self._stdout.flush()

    def text(self, text: str, style: str = "") -> None:
        """Print a line of a result, which may contain text of the installation."""
        self.show(Text(visible(text), style=style), soft_wrap=True)

    def show(self, view: RenderableType, *, soft_wrap: bool = False) -> None:
        """Print a view for people. In a pipe, nothing is wrapped or padded to the end of the line."""
        if self.is_terminal:
            self.console.print(view, soft_wrap=soft_wrap)
            return
        with self.console.capture() as captured:
            self.console.print(view, soft_wrap=soft_wrap)
        for line in captured.get().removesuffix("\n").split("\n"):
            self.line(line.rstrip())

    def message(self, text: str, style: str = "") -> None:
        """Print a line on standard error: progress, warnings, questions."""
        self.messages.print(Text("\n".join(map(visible, text.split("\n"))), style=style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows with a heading, without the columns that have no value."""
        complete = [list(map(shown, columns, row)) for row in rows]
        used = [number for number, _ in enumerate(columns) if any(map(visible, (row[number] for row in complete)))]
        kept = used or range(len(columns))
        self.show(make_table([columns[n] for n in kept], [[row[n] for n in kept] for row in complete]))

    def record(self, value: Mapping[str, object], shown: Mapping[str, object] | None = None) -> None:
        """Print one record: all of it with --json, otherwise its fields, or those in `shown`."""
        if self.as_json:
            self.json(value)
        else:
            self.fields(value if shown is None else shown)

    def fields(self, record: Mapping[str, object]) -> None:
        """Print one record, a field on each line."""
        fields = dict(_flatten(record))
        width = max(map(len, fields), default=0)
        for name, value in fields.items():
            line = Text.assemble((f"{visible(name):{width}}  ", "bold"), cell(shown(name, value)))
            self.show(line, soft_wrap=True)


def _flatten(record: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value with its name; that of a field of a field is `progress.done`."""
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", None if value == {} else value


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> RenderableType:
    """Return a table for a terminal."""
    from rich import box  # noqa: PLC0415  # imported only for a terminal
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, show_edge=False)
    for column in columns:
        # An id or a time that is broken into lines cannot be copied or compared, and a state cannot be read.
        is_unbroken = column in UNBROKEN or _TIME.fullmatch(column) is not None
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=is_unbroken)
    for row in rows:
        table.add_row(*map(cell, row))
    return table


def cell(value: object) -> Text:
    """Return a value as text, with the colour of its status."""
    if isinstance(value, Text):
        return value
    text = visible(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Text(text, justify="right")
    return Text(text, style=STYLES.get(text, ""))
