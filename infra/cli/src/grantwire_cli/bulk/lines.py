"""Lines of a file, CSV or JSON Lines, one at a time, each with its number in the file."""

from __future__ import annotations

import csv
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from grantwire_cli.bulk.fields import OPTIONAL, REQUIRED, LineError
from grantwire_cli.errors import CommandError
from grantwire_cli.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAX_LINE_BYTES = 64 * 1024  # longer than any valid line; protects the memory from a file that is no text
COLUMNS = f"Required are {', '.join(REQUIRED)}; optional are {', '.join(OPTIONAL)}."


class Format(StrEnum):
    """The formats of a file."""

    csv = "csv"
    jsonl = "jsonl"


class Line(NamedTuple):
    """A line: its number, its fields or what is wrong with it."""

    number: int
    fields: dict[str, Any] | None
    problem: str = ""


def detect_format(path: Path) -> Format:
    """Return the format by the extension.

    Raises CommandError if the extension says nothing.
    """
    extensions = {".csv": Format.csv, ".jsonl": Format.jsonl, ".ndjson": Format.jsonl, ".json": Format.jsonl}
    if path.suffix.lower() not in extensions:
        problem = f"The format of {path.name} is not known from its extension."
        raise CommandError(problem, hint="Name it with --format csv or --format jsonl.", code="UNKNOWN_FORMAT")
    return extensions[path.suffix.lower()]


def read_lines(
    file: BinaryIO, format_: Format, on_bytes: Callable[[int], None] = lambda _count: None
) -> Iterator[Line]:
    """Yield the lines of a file from its beginning; `on_bytes` gets the size of each part that was read.

    Raises CommandError if a CSV file has no usable heading.
    """
    file.seek(0)
    texts = _texts(file, on_bytes)
    return _csv_lines(texts) if format_ is Format.csv else _json_lines(texts)


def _texts(file: BinaryIO, on_bytes: Callable[[int], None]) -> Iterator[str]:
    """Yield each line of the file as text. Bytes that are not UTF-8 become lone surrogates, which no field may have."""
    first = True
    while raw := file.readline(MAX_LINE_BYTES):
        on_bytes(len(raw))
        yield raw.decode("utf-8-sig" if first else "utf-8", "surrogateescape")
        first = False


def _json_lines(texts: Iterator[str]) -> Iterator[Line]:
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            fields = json.loads(text, object_pairs_hook=_unique)
        except LineError as error:
            yield Line(number, None, str(error))
        except (ValueError, RecursionError):
            yield Line(number, None, "the line is not a JSON object")
        else:
            problem = "" if isinstance(fields, dict) else "the line is not a JSON object"
            yield Line(number, fields if not problem else None, problem)


def _csv_lines(texts: Iterator[str]) -> Iterator[Line]:
    reader = csv.reader(texts, strict=True)
    names = _heading(reader)
    while True:
        number = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Line(number, None, f"the line is not valid CSV: {error}")
            continue
        if not values:
            continue
        if len(values) != len(names):
            yield Line(number, None, f"the line has {count_of(len(values), 'field')}, but the heading has {len(names)}")
        else:
            yield Line(number, dict(zip(names, values, strict=True)))


def _heading(reader: Iterator[list[str]]) -> list[str]:
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error:
        names = []
    if not names:
        raise CommandError("The file is empty.", hint=COLUMNS, code="BAD_HEADING")
    missing = [name for name in REQUIRED if name not in names]
    unknown = [name for name in names if name not in {*REQUIRED, *OPTIONAL}]
    if missing or unknown or len(set(names)) != len(names):
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown) or 'a column twice'}"
        raise CommandError(f"Line 1: the heading {problem}.", hint=COLUMNS, code="BAD_HEADING")
    return names


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise LineError("a field is there twice")
    return fields
