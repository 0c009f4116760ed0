"""What a section of the benchmark has found, for the report to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.rounds import Rounds, Spread

AHEAD = "ahead"


class Target(NamedTuple):
    """One target of a run, with what was measured and whether that is enough."""

    what: str
    measured: str
    wanted: str
    met: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One path in the table: what we do, what could be done, and what another way does, all in the same rounds.

    `ahead` makes it a target to be faster than the peer.
    """

    path: str
    unit: str
    ours: Spread
    limit: Spread
    limit_name: str
    ratio: Spread
    target: float | None = None
    stretch: float | None = None
    peer: str = ""
    factor: Spread | None = None
    ahead: bool = False

    @classmethod
    def of(  # noqa: PLR0913 - the columns of a table
        cls,
        rounds: Rounds,
        path: str,
        *,
        ours: str,
        limit: str,
        target: float | None = None,
        stretch: float | None = None,
        unit: str = "a second",
        peer: str = "",
        ahead: bool = False,
    ) -> Row:
        """The row of contenders that were measured together; `peer` is one of them too, if there is one."""
        return cls(
            path=path,
            unit=unit,
            ours=rounds.rate(ours),
            limit=rounds.rate(limit),
            limit_name=limit,
            ratio=rounds.ratio(ours, limit),
            target=target,
            stretch=stretch,
            peer=peer,
            factor=rounds.ratio(ours, peer) if peer else None,
            ahead=ahead,
        )

    def reaches(self, share: float | None) -> bool | None:
        """Whether the ratio is at least this share of the limit; none if there is no share to reach."""
        return None if share is None else self.ratio.median >= share

    @property
    def leads(self) -> bool | None:
        """Whether ours is faster than the peer; none if that is no target."""
        return self.factor.median > 1 if self.ahead and self.factor else None

    def targets(self) -> Iterator[Target]:
        """The share of the limit, and the peer."""
        if self.target is not None:
            measured = f"{self.ratio.median:.3f} of the limit"
            yield Target(self.path, measured, f"{self.target:.2f}", bool(self.reaches(self.target)))
        if self.leads is not None and self.factor:
            yield Target(f"{self.path} against {self.peer}", f"{self.factor.median:.2f} times", AHEAD, self.leads)


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure already in words, with a target and a stretch of its own; `met` is None where there is no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None
    stretch: str = ""
    stretch_met: bool | None = None

    @classmethod
    def at_most(
        cls, what: str, measured: str, value: float, target: float, unit: str, stretch: float | None = None
    ) -> Finding:
        """A figure that is good if it is small; `measured` is `value` in words."""
        if stretch is None:
            return cls(what, measured, f"{target:g} {unit}", value <= target)
        return cls(what, measured, f"{target:g} {unit}", value <= target, f"{stretch:g} {unit}", value <= stretch)

    @classmethod
    def against(cls, rounds: Rounds, ours: str, peer: str, of: str = "", *, ahead: bool = False) -> Finding:
        """How many times as fast as a peer ours was; `ahead` makes it a target to be faster."""
        factor = rounds.ratio(ours, peer)
        rates = f"{rounds.rate(ours).median:,.0f} a second against {rounds.rate(peer).median:,.0f}"
        times = f"{factor.median:.1f} [{factor.low:.1f}, {factor.high:.1f}] times"
        target, met = (AHEAD, factor.median > 1) if ahead else ("", None)
        return cls(f"{ours} against {peer}{of}", f"{times}, {rates}", target, met)

    def targets(self) -> Iterator[Target]:
        """The one target, if there is one."""
        if self.met is not None:
            yield Target(self.what, self.measured, self.target, self.met)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of lines, drawn into docs/benchmarks/<name>.svg."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report. Remarks are Markdown: what was measured how, and where contracts differ."""

    title: str
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def targets(self) -> Iterator[Target]:
        """The targets of all rows and findings."""
        for row in self.rows:
            yield from row.targets()
        for finding in self.findings:
            yield from finding.targets()
