"""The report of a run: tables for the terminal, and a Markdown page with its charts in a folder next to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.charts import bar_chart, line_chart
from tests.bench.effort import FULL
from tests.bench.tables import (
    COLUMNS,
    FINDINGS,
    escape_markdown,
    finding_cells,
    format_markdown_table,
    format_text_table,
    row_cells,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from tests.bench.effort import Effort
    from tests.bench.results import Finding, Row, Section, Target

RATIOS = "ratios"
_CAPTION = "How close each path comes to its limit"
_INTRODUCTION = """\
How close each path of Grantwire comes to the limit of the servers that it uses, and how it compares with alternatives.
`make bench` repeats the full run. `QUICK=1 make bench` takes minutes; its results are too rough to publish.
"""
_LEGEND = """\
- **limit**: the rate of a minimal program that does the same work on the same servers.
- **ratio**: Grantwire's rate divided by the limit, measured in the same round. The table shows the median, the lowest
  and the highest round.
- **factor**: Grantwire's rate divided by the rate of the alternative. ✓ or ✗ appears where being faster is a target.
- **target**, **stretch**: the ratio that is required, and the ratio that is desired. A path without a target is shown
  for comparison only.
"""
_METHOD = """\
Measured on {day}, in {rounds} rounds. Each round measures every contender once, for {seconds:g} s or until its work is
done, in an order that rotates. Clients and servers share one machine. The servers write to its disk with fsync on.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a run, and the machine that they were measured on."""

    effort: Effort
    day: date
    machine: Mapping[str, str]
    sections: Sequence[Section]
    left_out: Sequence[str] = ()

    @property
    def rows(self) -> list[Row]:
        """The rows of all sections."""
        return [row for section in self.sections for row in section.rows]

    @property
    def findings(self) -> list[Finding]:
        """The findings of all sections."""
        return [finding for section in self.sections for finding in section.findings]

    @property
    def targets(self) -> list[Target]:
        """The targets of all sections."""
        return [target for section in self.sections for target in section.targets()]

    def misses(self) -> list[str]:
        """Return every missed target with the measured value."""
        return [
            f"{target.name}: {target.measured}, target {target.wanted}" for target in self.targets if not target.met
        ]

    def summary(self) -> str:
        """Return the list of targets for a terminal, the met ones first."""
        met = [f"  ✓ {target.name}: {target.measured}, target {target.wanted}" for target in self.targets if target.met]
        missed = [f"  ✗ {miss}" for miss in self.misses()]
        return "\n".join([f"{len(met)} of {len(self.targets)} targets are met.", *met, *missed])

    def text(self) -> str:
        """Return the tables for a terminal."""
        tables = [(COLUMNS, list(map(row_cells, self.rows))), (FINDINGS, list(map(finding_cells, self.findings)))]
        return "\n\n".join(format_text_table([header, *lines]) for header, lines in tables if lines)

    def write(self, page: Path) -> None:
        """Write the page and its charts, and delete the charts of an earlier run."""
        folder = page.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.svg"):
            old.unlink()
        page.write_text(self.markdown(folder.name))
        if self.rows:
            (folder / f"{RATIOS}.svg").write_text(bar_chart(_CAPTION, self.rows))
        for chart in (chart for section in self.sections for chart in section.charts):
            (folder / f"{chart.name}.svg").write_text(line_chart(chart))

    def markdown(self, charts: str) -> str:
        """Return the page; `charts` is the path of its charts, relative to the page."""
        return "\n".join(self._page(charts)) + "\n"

    def _page(self, charts: str) -> Iterator[str]:
        yield "# Benchmarks\n"
        if self.effort != FULL:
            yield f"> **A {self.effort.name} run**, not a full one: do not publish its results.\n"
        if self.left_out:
            yield f"> **Incomplete run**: it does not include {', '.join(self.left_out)}.\n"
        yield _INTRODUCTION
        if self.rows:
            yield _LEGEND
            yield format_markdown_table([COLUMNS, *map(row_cells, self.rows)]) + "\n"
            yield f"![{_CAPTION}]({charts}/{RATIOS}.svg)\n"
        if self.targets:
            yield f"{len(self.targets) - len(self.misses())} of {len(self.targets)} targets are met.\n"
            yield from (f"- missed: {escape_markdown(miss)}\n" for miss in self.misses())
        for section in self.sections:
            yield from _section(section, charts)
        yield "## Method and machine\n"
        yield _METHOD.format(day=self.day, rounds=self.effort.rounds, seconds=self.effort.seconds)
        yield format_markdown_table([["part", "version"], *self.machine.items()])


def _section(section: Section, charts: str) -> Iterator[str]:
    yield f"## {section.title}\n"
    for remark in section.remarks:
        yield f"{remark}\n"
    if section.findings:
        yield format_markdown_table([FINDINGS, *map(finding_cells, section.findings)]) + "\n"
    for chart in section.charts:
        yield f"![{escape_markdown(chart.title)}]({charts}/{chart.name}.svg)\n"
