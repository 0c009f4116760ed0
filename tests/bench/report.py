"""What a run says: tables on the terminal, and a page in Markdown with its charts in a folder beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.charts import bar_chart, line_chart
from tests.bench.effort import FULL
from tests.bench.tables import COLUMNS, FINDINGS, aligned, inert, marked, of_finding, of_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from tests.bench.effort import Effort
    from tests.bench.results import Finding, Row, Section, Target

RATIOS = "ratios"
_CAPTION = "How close each path comes to its limit"
_INTRODUCTION = """\
How close each path of Grantwire comes to what the servers underneath it can do, and how it compares with other ways of
doing the same. `make bench` repeats it; `QUICK=1 make bench` takes minutes and gives figures to look at, not to quote.
"""
_READING = """\
The limit is the least that could do the same work on the same servers. A ratio is Grantwire's rate divided by the
limit's in the same round: the median of the rounds, with the lowest and the highest. A factor is the same for the peer;
a mark beside it says that being faster than the peer is a target. A path without a target is shown for comparison.
"""
_METHOD = """\
Measured on {day}, in {rounds} rounds: in each, every contender has its turn, for {seconds:g} s or until its work is
done, in an order that turns. Clients and servers share one machine; the servers write to its disk, with fsync on.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found, and on what."""

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
        """Every target that was not met, with what was measured instead."""
        return [f"{one.what}: {one.measured} instead of {one.wanted}" for one in self.targets if not one.met]

    def summary(self) -> str:
        """Every target, those that were met first, for a terminal."""
        met = [f"  ✓ {one.what}: {one.measured}, target {one.wanted}" for one in self.targets if one.met]
        missed = [f"  ✗ {miss}" for miss in self.misses()]
        return "\n".join([f"{len(met)} of {len(self.targets)} targets are met.", *met, *missed])

    def text(self) -> str:
        """The tables for a terminal."""
        tables = [(COLUMNS, list(map(of_row, self.rows))), (FINDINGS, list(map(of_finding, self.findings)))]
        return "\n\n".join(aligned([header, *lines]) for header, lines in tables if lines)

    def write(self, page: Path) -> None:
        """Write the page and its charts; those of an earlier run go."""
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
        """The page; `charts` is the folder of its charts, as the page refers to it."""
        return "\n".join(self._page(charts)) + "\n"

    def _page(self, charts: str) -> Iterator[str]:
        yield "# Benchmarks\n"
        if self.effort != FULL:
            yield f"> **A {self.effort.name} run**, not a full one: its figures are not to be quoted.\n"
        if self.left_out:
            yield f"> **Not everything was measured**: {', '.join(self.left_out)} left out.\n"
        yield _INTRODUCTION
        if self.rows:
            yield _READING
            yield marked([COLUMNS, *map(of_row, self.rows)]) + "\n"
            yield f"![{_CAPTION}]({charts}/{RATIOS}.svg)\n"
        if self.targets:
            yield f"{len(self.targets) - len(self.misses())} of {len(self.targets)} targets are met.\n"
            yield from (f"- missed: {inert(miss)}\n" for miss in self.misses())
        for section in self.sections:
            yield from _section(section, charts)
        yield "## How and on what\n"
        yield _METHOD.format(day=self.day, rounds=self.effort.rounds, seconds=self.effort.seconds)
        yield marked([["part", "version"], *self.machine.items()])


def _section(section: Section, charts: str) -> Iterator[str]:
    yield f"## {section.title}\n"
    for remark in section.remarks:
        yield f"{remark}\n"
    if section.findings:
        yield marked([FINDINGS, *map(of_finding, section.findings)]) + "\n"
    for chart in section.charts:
        yield f"![{inert(chart.title)}]({charts}/{chart.name}.svg)\n"
