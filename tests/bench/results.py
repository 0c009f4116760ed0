"""Results of the benchmark's sections, as the report shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.rounds import Rounds, Spread

FASTER = "faster"
NOT_SLOWER = "not slower"


class Target(NamedTuple):
    """Target of a run, the measured value, and whether the target is met."""

    name: str
    measured: str
    wanted: str
    met: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table: the rates of Grantwire, its limit and an alternative, measured in the same rounds.

    With `must_be_faster`, being faster than the alternative is a target.
    """

    path: str
    unit: str
    grantwire: Spread
    limit: Spread
    limit_name: str
    ratio: Spread
    target: float | None = None
    stretch: float | None = None
    alternative: str = ""
    factor: Spread | None = None
    must_be_faster: bool = False

    @classmethod
    def from_rounds(  # noqa: PLR0913 - the columns of a table
        cls,
        rounds: Rounds,
        path: str,
        *,
        grantwire: str,
        limit: str,
        target: float | None = None,
        stretch: float | None = None,
        unit: str = "/s",
        alternative: str = "",
        must_be_faster: bool = False,
    ) -> Row:
        """Return the row of a path. `grantwire`, `limit` and `alternative` are names of contenders in `rounds`."""
        return cls(
            path=path,
            unit=unit,
            grantwire=rounds.rate(grantwire),
            limit=rounds.rate(limit),
            limit_name=limit,
            ratio=rounds.ratio(grantwire, limit),
            target=target,
            stretch=stretch,
            alternative=alternative,
            factor=rounds.ratio(grantwire, alternative) if alternative else None,
            must_be_faster=must_be_faster,
        )

    def reaches(self, share: float | None) -> bool | None:
        """Return whether the ratio is at least this share of the limit, or None without a share."""
        return None if share is None else self.ratio.median >= share

    @property
    def is_faster(self) -> bool | None:
        """Whether Grantwire is faster than the alternative, or None if that is not a target."""
        return self.factor.median > 1 if self.must_be_faster and self.factor else None

    def targets(self) -> Iterator[Target]:
        """Yield the share of the limit and being faster than the alternative, if they are targets."""
        if self.target is not None:
            measured = f"{self.ratio.median:.3f} of the limit"
            yield Target(self.path, measured, f"{self.target:.2f}", bool(self.reaches(self.target)))
        if self.is_faster is not None and self.factor:
            name = f"{self.path} against {self.alternative}"
            yield Target(name, f"{self.factor.median:.2f} times as fast", FASTER, self.is_faster)


@dataclass(frozen=True, slots=True)
class Finding:
    """Measured value as text, with optional targets; `met` is None without a target."""

    name: str
    measured: str
    target: str = ""
    met: bool | None = None
    stretch: str = ""
    stretch_met: bool | None = None

    @classmethod
    def at_most(
        cls, name: str, measured: str, value: float, target: float, unit: str, stretch: float | None = None
    ) -> Finding:
        """Return a finding whose targets are upper bounds; `measured` is `value` as text."""
        if stretch is None:
            return cls(name, measured, f"{target:g} {unit}", value <= target)
        return cls(name, measured, f"{target:g} {unit}", value <= target, f"{stretch:g} {unit}", value <= stretch)

    @classmethod
    def compare(
        cls, rounds: Rounds, grantwire: str, alternative: str, suffix: str = "", *, target: str = ""
    ) -> Finding:
        """Return how many times as fast as an alternative Grantwire is.

        The target is FASTER by the median, or NOT_SLOWER, which is met unless every round is slower.
        """
        factor = rounds.ratio(grantwire, alternative)
        rates = f"{rounds.rate(grantwire).median:,.0f}/s against {rounds.rate(alternative).median:,.0f}/s"
        times = f"{factor.median:.1f} [{factor.low:.1f}, {factor.high:.1f}] times as fast"
        met = {FASTER: factor.median > 1, NOT_SLOWER: factor.high >= 1}.get(target)
        return cls(f"{grantwire} against {alternative}{suffix}", f"{times}, {rates}", target, met)

    def targets(self) -> Iterator[Target]:
        """Yield the target, if there is one."""
        if self.met is not None:
            yield Target(self.name, self.measured, self.target, self.met)


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Line chart, drawn into docs/benchmarks/<name>.svg."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Section of the report. Remarks are Markdown: the method, and how the guarantees of contenders differ."""

    title: str
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def targets(self) -> Iterator[Target]:
        """Yield the targets of all rows and findings."""
        for row in self.rows:
            yield from row.targets()
        for finding in self.findings:
            yield from finding.targets()
