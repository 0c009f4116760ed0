"""An import: validate the whole file, then send it, with the counts that a progress bar shows."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from grantwire_cli.bulk.batches import make_batches
from grantwire_cli.bulk.fields import LineError, parse_item
from grantwire_cli.bulk.lines import Format, read_lines
from grantwire_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_cli.bulk.results import ResultFile
    from grantwire_cli.bulk.sending import Sender

MAX_SHOWN_PROBLEMS = 20


@dataclass
class Validation:
    """What the first pass found: lines by operation, and the first problems."""

    operations: Counter[str] = field(default_factory=Counter)
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
        validation = Validation()
        for line in read_lines(self.file, self.format, on_bytes):
            problem = line.problem
            if line.fields is not None:
                try:
                    validation.operations[parse_item(line.fields, self.name)["operation"]] += 1
                    continue
                except LineError as error:
                    problem = str(error)
            validation.invalid += 1
            if len(validation.problems) < MAX_SHOWN_PROBLEMS:
                validation.problems.append((line.number, problem))
        return validation

    def items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the line number and the item of each line of a valid file.

        Raises CommandError if a line is not valid: the file has changed since it was validated.
        """
        for line in read_lines(self.file, self.format):
            try:
                item = parse_item(line.fields or {}, self.name)
            except LineError as error:
                raise CommandError(f"Line {line.number} has changed since the validation: {error}.") from error
            yield line.number, item


def run_import(
    source: Source, results: ResultFile, sender: Sender, on_line: Callable[[int], None] = lambda _count: None
) -> None:
    """Send every line that has no result yet, and write the results in the order of the file.

    Raises what the sender raises; the results so far are in the result file.
    """
    validated = source.state()

    def remaining() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, item in source.items():
            if results.has(number, item["idempotency_key"]):
                on_line(1)
            else:
                yield number, item
        if source.state() != validated:
            raise CommandError("The file was changed during the import. Run the same command again.")

    for batch, outcomes in sender.send_all(make_batches(remaining())):
        for number, item, outcome in zip(batch.lines, batch.items, outcomes, strict=True):
            results.add(number, item["idempotency_key"], outcome)
        results.flush()
        on_line(len(outcomes))
