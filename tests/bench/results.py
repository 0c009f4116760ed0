"""What a section of the benchmark has found, for the report to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.rounds import Rounds, Spread


@dataclass(frozen=True, slots=True)
class Row:
    """One path in the table: what we do, what could be done, and what another way does, all in the same rounds."""

    path: str
    unit: str
    ours: Spread
    limit: Spread
    limit_name: str
    ratio: Spread
    target: float
    stretch: float
    peer: str = ""
    factor: Spread | None = None

    @classmethod
    def of(  # noqa: PLR0913 - the columns of a table
        cls,
        rounds: Rounds,
        path: str,
        *,
        ours: str,
        limit: str,
        target: float,
        stretch: float,
        unit: str = "a second",
        peer: str = "",
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
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure with a target of its own, already in words; `met` is None where there is no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


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
