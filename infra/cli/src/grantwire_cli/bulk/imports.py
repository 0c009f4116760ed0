"""An import: validate the whole file, then send it, with the counts that a progress bar shows."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from grantwire_cli.bulk.batches import make_batches
from grantwire_cli.bulk.fields import LineError, parse_item, removes_end
from grantwire_cli.bulk.lines import Format, read_lines
from grantwire_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_cli.bulk.batches import Batch
    from grantwire_cli.bulk.results import ResultFile
    from grantwire_cli.bulk.sending import Sender

MAX_SHOWN_PROBLEMS = 20


@dataclass
class Validation:
    """What the first pass found: the state of the file that it read, lines by operation, and the first problems."""

    state: tuple[int, int]
    operations: Counter[str] = field(default_factory=Counter)
    removed_ends: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)
    invalid: int = 0

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.operations.total() + self.invalid


@dataclass(frozen=True)
class Source:
    """The file of an import, opened once, so that both passes read the same file."""

    file: BinaryIO
    format: Format
    name: str

    def state(self) -> tuple[int, int]:
        """Return what changes when the file is written to: its size and time."""
        status = os.fstat(self.file.fileno())
        return status.st_size, status.st_mtime_ns

    def validate(self, on_bytes: Callable[[int], None] = lambda _count: None) -> Validation:
        """Check every line and return the counts and the first problems."""
        validation = Validation(self.state())
        for line in read_lines(self.file, self.format, on_bytes):
            problem = line.problem
            if line.fields is not None:
                try:
                    item = parse_item(line.fields, self.name)
                except LineError as error:
                    problem = str(error)
                else:
                    validation.operations[item["operation"]] += 1
                    validation.removed_ends += removes_end(item)
                    continue
            validation.invalid += 1
            if len(validation.problems) < MAX_SHOWN_PROBLEMS:
                validation.problems.append((line.number, problem))
        return validation

    def items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the line number and the item of each line of a valid file.

        Raises CommandError if a line is not valid: the file was changed after its validation.
        """
        for line in read_lines(self.file, self.format):
            try:
                item = parse_item(line.fields or {}, self.name)
            except LineError as error:
                problem = f"Line {line.number} was changed after its validation: {error}."
                raise CommandError(problem, code="FILE_CHANGED") from error
            yield line.number, item


def run_import(
    source: Source,
    validation: Validation,
    results: ResultFile,
    sender: Sender,
    on_line: Callable[[int], None] = lambda _count: None,
) -> None:
    """Send every line that has no result yet, and write the results in the order of the file.

    Raises CommandError if the file is not the validated one, and what the sender raises; the results so far are in the
    result file.
    """

    def remaining() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, item in source.items():
            if results.has(number, item["idempotency_key"]):
                on_line(1)
            else:
                yield number, item

    for batch, outcomes in sender.send_all(_unchanged_batches(source, validation, remaining())):
        for number, item, outcome in zip(batch.lines, batch.items, outcomes, strict=True):
            results.add(number, item["idempotency_key"], outcome)
        results.flush()
        on_line(len(outcomes))
    _check_unchanged(source, validation)  # lines that were added behind the last batch were not imported


def _unchanged_batches(
    source: Source, validation: Validation, lines: Iterator[tuple[int, dict[str, Any]]]
) -> Iterator[Batch]:
    """Yield the lines in batches. Compare the file's state after each was read, so that it has validated lines only."""
    for batch in make_batches(lines):
        _check_unchanged(source, validation)
        yield batch


def _check_unchanged(source: Source, validation: Validation) -> None:
    if source.state() != validation.state:
        problem = "The file was changed after its validation."
        raise CommandError(
            problem, hint="Run the same command again: it validates the file first.", code="FILE_CHANGED"
        )
