"""Formats numbers, and tables for a terminal and in Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.results import Finding, Row
    from tests.bench.rounds import Spread

    Table = Sequence[Sequence[str]]

COLUMNS = ["path", "Grantwire", "limit", "ratio [low, high]", "target", "stretch", "alternative", "factor [low, high]"]
FINDINGS = ["finding", "measured", "target", "stretch"]
_MARKS = {True: " ✓", False: " ✗", None: ""}


def row_cells(row: Row) -> list[str]:
    """Return the cells of a row, in the order of COLUMNS."""
    limit = f"{_rate(row.limit, row.unit)} ({row.limit_name})"
    shares = [
        "" if share is None else f"{share:.2f}{_MARKS[row.reaches(share)]}" for share in (row.target, row.stretch)
    ]
    factor = f"{_spread(row.factor)}{_MARKS[row.is_faster]}" if row.factor else ""
    return [row.path, _rate(row.grantwire, row.unit), limit, _spread(row.ratio), *shares, row.alternative, factor]


def finding_cells(finding: Finding) -> list[str]:
    """Return the cells of a finding, in the order of FINDINGS."""
    target, stretch = f"{finding.target}{_MARKS[finding.met]}", f"{finding.stretch}{_MARKS[finding.stretch_met]}"
    return [finding.name, finding.measured, target, stretch]


def format_text_table(table: Table) -> str:
    """Return a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table)
    return "\n".join(line.rstrip() for line in lines)


def format_markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    header, *lines = [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in table]
    return "\n".join([header, "| --- " * len(table[0]) + "|", *lines])


def escape_markdown(text: str) -> str:
    """Escape characters that would end a table cell or begin an HTML tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def format_number(value: float) -> str:
    """Format a number with three or four significant digits: 1,234 or 1,235,000 or 12.3 or 0.0123."""
    if not value:
        return "0"
    digits = (3 if abs(value) >= 1_000 else 2) - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def _rate(rate: Spread, unit: str) -> str:
    return f"{format_number(rate.median)} {unit}"


def _spread(ratio: Spread) -> str:
    return f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
