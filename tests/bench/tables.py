"""Figures as words, and tables of words: for a terminal and in Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.results import Finding, Row
    from tests.bench.rounds import Spread

    Table = Sequence[Sequence[str]]

COLUMNS = ["path", "Grantwire", "limit", "ratio [low, high]", "target", "stretch", "peer", "factor [low, high]"]
FINDINGS = ["finding", "measured", "target", "stretch"]
_MARKS = {True: " ✓", False: " ✗", None: ""}


def of_row(row: Row) -> list[str]:
    """The cells of a path, under COLUMNS."""
    limit = f"{_rate(row.limit, row.unit)} ({row.limit_name})"
    shares = [
        "" if share is None else f"{share:.2f}{_MARKS[row.reaches(share)]}" for share in (row.target, row.stretch)
    ]
    factor = f"{_spread(row.factor)}{_MARKS[row.leads]}" if row.factor else ""
    return [row.path, _rate(row.ours, row.unit), limit, _spread(row.ratio), *shares, row.peer, factor]


def of_finding(finding: Finding) -> list[str]:
    """The cells of a finding, under FINDINGS."""
    target, stretch = f"{finding.target}{_MARKS[finding.met]}", f"{finding.stretch}{_MARKS[finding.stretch_met]}"
    return [finding.what, finding.measured, target, stretch]


def aligned(table: Table) -> str:
    """A table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table)
    return "\n".join(line.rstrip() for line in lines)


def marked(table: Table) -> str:
    """A table in Markdown."""
    header, *lines = [f"| {' | '.join(map(inert, cells))} |" for cells in table]
    return "\n".join([header, "| --- " * len(table[0]) + "|", *lines])


def inert(text: str) -> str:
    """Text that neither ends a cell of a table nor begins a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def number(value: float) -> str:
    """A figure with as many digits as mean something: 1,234 or 1,235,000 or 12.3 or 0.0123."""
    if not value:
        return "0"
    digits = (3 if abs(value) >= 1_000 else 2) - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def _rate(rate: Spread, unit: str) -> str:
    return f"{number(rate.median)} {unit.replace('a second', '/s')}"


def _spread(ratio: Spread) -> str:
    return f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
