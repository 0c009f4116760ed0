"""The benchmark's calculations and report."""

from __future__ import annotations

import datetime as dt
import io
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from infra.local.progress import Progress
from tests.bench.axes import Axis, format_tick
from tests.bench.charts import bar_chart, line_chart
from tests.bench.effort import FULL, QUICK
from tests.bench.report import Report
from tests.bench.results import FASTER, NOT_SLOWER, Chart, Finding, Line, Row, Section
from tests.bench.rounds import Rounds, run_rounds
from tests.bench.tables import finding_cells, format_number, row_cells

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bench.effort import Effort

HOSTILE = "</text><script>&\"'|"


ROUNDS = Rounds({"grantwire": [1_200.0, 1_234.4, 1_300.0], "pgbench": [2_000.0] * 3, "other": [400.0] * 3})


def _row(
    path: str = "grant", *, target: float | None = 0.5, stretch: float | None = 0.8, must_be_faster: bool = False
) -> Row:
    return Row.from_rounds(
        ROUNDS,
        path,
        grantwire="grantwire",
        limit="pgbench",
        target=target,
        stretch=stretch,
        alternative="other",
        must_be_faster=must_be_faster,
    )


def _chart(label: str = "grant", *, name: str = "clients", log_y: bool = False) -> Chart:
    lines = (Line(label, ((1, 900.0), (32, 4_000.0))), Line("pgbench", ((1, 0.0), (32, 7_000.0))))
    return Chart(name, label, label, label, lines, log_x=True, log_y=log_y)


def _report(*sections: Section, effort: Effort = FULL) -> Report:
    return Report(effort, dt.date(2026, 1, 2), {"PostgreSQL": "18.6"}, sections)


def _texts(picture: str) -> list[str]:
    root = ET.fromstring(picture)  # noqa: S314 - written by the benchmark
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


def test_ratio_is_median_of_ratios_of_rounds() -> None:
    """A round in which the machine was slow for both contenders counts like the others: 0.5, 0.6, 0.9, not 90 / 110."""
    rounds = Rounds({"grantwire": [50.0, 6.0, 90.0], "limit": [100.0, 10.0, 100.0]})
    ratio = rounds.ratio("grantwire", to="limit")
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.6, 0.9)
    assert rounds.rate("grantwire").median == 50.0


def test_contenders_with_different_numbers_of_rounds_cannot_be_compared() -> None:
    """A ratio of rates from different rounds would be meaningless."""
    with pytest.raises(ValueError, match="longer"):
        Rounds({"grantwire": [1.0], "limit": [1.0, 2.0]}).ratio("grantwire", to="limit")


def test_order_of_contenders_rotates_in_each_round() -> None:
    """The first contender of a round may have colder caches, so every contender is first in turn."""
    order: list[str] = []

    def contender(name: str) -> Callable[[], float]:
        def measure() -> float:
            order.append(name)
            return float(len(order))

        return measure

    measured = run_rounds("test", 4, {name: contender(name) for name in "abc"}, Progress(io.StringIO()))
    assert "".join(order) == "abcbcacababc"
    assert measured.rates["b"] == [2.0, 4.0, 9.0, 11.0]


def test_table_shows_rates_ratio_targets_and_alternative() -> None:
    """The table has one line for each path."""
    header, line = _report(Section("Requests", [_row()])).text().splitlines()
    assert header.split("  ")[0] == "path"
    cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
    assert cells == [
        "grant",
        "1,234 /s",
        "2,000 /s (pgbench)",
        "0.62 [0.60, 0.65]",
        "0.50 ✓",
        "0.80 ✗",
        "other",
        "3.09 [3.00, 3.25]",
    ]


def test_row_has_only_the_targets_that_are_given() -> None:
    """A path without a target cannot miss one. Being slower than an alternative is a miss only if it is a target."""
    slow = Rounds({"grantwire": [3.0], "limit": [4.0], "alternative": [3.0]})
    line = partial(Row.from_rounds, slow, "replay", grantwire="grantwire", limit="limit", alternative="alternative")
    assert row_cells(line())[4:] == ["", "", "alternative", "1.00 [1.00, 1.00]"]
    assert row_cells(line(target=0.75))[4:6] == ["0.75 ✓", ""]
    assert row_cells(line(must_be_faster=True))[4:] == ["", "", "alternative", "1.00 [1.00, 1.00] ✗"]
    assert row_cells(_row(must_be_faster=True))[-1] == "3.09 [3.00, 3.25] ✓"
    assert list(line().targets()) == []
    assert [target.met for target in line(target=0.75, must_be_faster=True).targets()] == [True, False]


def test_finding_at_most_is_compared_with_target_and_stretch() -> None:
    """A value equal to the target meets it. A value above the stretch is not a miss."""
    on_target = Finding.at_most("import", "220 ms", 220.0, 220, "ms", 190)
    assert finding_cells(on_target) == ["import", "220 ms", "220 ms ✓", "190 ms ✗"]
    assert finding_cells(Finding.at_most("import", "221 ms", 220.5, 220, "ms")) == ["import", "221 ms", "220 ms ✗", ""]
    assert _report(Section("Cold start", findings=[on_target])).misses() == []


@pytest.mark.parametrize(("alternative", "met"), [("other", True), ("pgbench", False), ("grantwire", False)])
def test_equal_speed_does_not_count_as_faster(alternative: str, met: bool) -> None:
    """The target is met only if Grantwire is strictly faster than the alternative."""
    (target,) = Finding.compare(ROUNDS, "grantwire", alternative, target=FASTER).targets()
    assert (target.wanted, target.met) == ("faster", met)
    assert list(Finding.compare(ROUNDS, "grantwire", alternative).targets()) == []


@pytest.mark.parametrize(("alternative", "met"), [("other", True), ("pgbench", False), ("grantwire", True)])
def test_equal_speed_counts_as_not_slower(alternative: str, met: bool) -> None:
    """The target is missed only if Grantwire is slower in every round."""
    (target,) = Finding.compare(ROUNDS, "grantwire", alternative, target=NOT_SLOWER).targets()
    assert (target.wanted, target.met) == ("not slower", met)


def test_summary_lists_every_target_as_met_or_missed() -> None:
    """Rows and findings with a target are listed; findings without a target are not."""
    findings = [
        Finding("start", "210 ms", "180 ms", met=False),
        Finding("size", "3 MB"),
        Finding("up", "1 s", "2 s", met=True),
    ]
    report = _report(Section("Requests", [_row(), _row("relay", target=0.7, must_be_faster=True)], findings))
    assert report.misses() == ["relay: 0.617 of the limit, target 0.70", "start: 210 ms, target 180 ms"]
    assert report.summary().splitlines() == [
        "3 of 5 targets are met.",
        "  ✓ grant: 0.617 of the limit, target 0.50",
        "  ✓ relay against other: 3.09 times as fast, target faster",
        "  ✓ up: 1 s, target 2 s",
        "  ✗ relay: 0.617 of the limit, target 0.70",
        "  ✗ start: 210 ms, target 180 ms",
    ]
    assert "0.70 ✗" in report.text()
    assert "180 ms ✗" in report.text()
    page = report.markdown("charts")
    assert "| up | 1 s | 2 s ✓ |  |" in page
    assert "3 of 5 targets are met." in page
    assert "- missed: start: 210 ms, target 180 ms" in page


def test_page_is_written_with_its_charts_and_without_charts_of_earlier_runs(tmp_path: Path) -> None:
    """Every chart that the page shows exists, and charts of an earlier run are deleted."""
    page = tmp_path / "docs" / "benchmarks.md"
    _report(Section("Before", [_row()], charts=[_chart(name="before")])).write(page)
    _report(Section("After", [_row()], charts=[_chart(name="after")], remarks=["A *remark*."])).write(page)
    assert sorted(file.name for file in (tmp_path / "docs" / "benchmarks").iterdir()) == ["after.svg", "ratios.svg"]
    text = page.read_text()
    for expected in (
        "(benchmarks/after.svg)",
        "(benchmarks/ratios.svg)",
        "A *remark*.",
        "2026-01-02",
        "18.6",
        "make bench",
    ):
        assert expected in text


def test_page_of_a_quick_run_begins_with_a_warning() -> None:
    """The page of a full run has no warning."""
    assert "A quick run" in _report(effort=QUICK).markdown("charts").splitlines()[2]
    assert "run**" not in _report().markdown("charts")


def test_names_are_escaped_in_markdown_tables() -> None:
    """Neither a vertical bar nor a tag in a name changes the table."""
    page = _report(Section("S", [_row(HOSTILE)])).markdown("x")
    line = next(line for line in page.splitlines() if "script" in line)
    assert "<" not in line
    assert line.replace("\\|", "").count("|") == 9


@pytest.mark.parametrize("log_y", [False, True])
def test_labels_are_escaped_in_charts(log_y: bool) -> None:
    """Title, axis labels and legend are text, and a logarithmic axis leaves out a zero."""
    picture = line_chart(_chart(HOSTILE, log_y=log_y))
    assert _texts(picture).count(HOSTILE) == 4
    assert "script" not in {element.tag for element in ET.fromstring(picture).iter()}  # noqa: S314 - written by the benchmark
    assert picture == line_chart(_chart(HOSTILE, log_y=log_y))


def test_chart_with_one_point_or_none_is_drawn() -> None:
    """A smoke run may measure one point only."""
    for points in ((), ((5.0, 3.0),)):
        for log in (False, True):
            assert "one" in _texts(line_chart(Chart("n", "t", "x", "y", (Line("one", points),), log_x=log, log_y=log)))


def test_bar_chart_shows_ratio_of_each_row() -> None:
    """This includes a row above its limit and a row without a target."""
    beyond = Rounds({"grantwire": [3.0], "limit": [2.0]})
    rows = [
        _row(HOSTILE),
        Row.from_rounds(beyond, "sweep", grantwire="grantwire", limit="limit", target=0.8),
        _row("query", target=None),
    ]
    texts = _texts(bar_chart("title", rows))
    for expected in (HOSTILE, "0.62", "sweep", "1.50", "limit", "query"):
        assert expected in texts


@pytest.mark.parametrize(
    ("values", "log", "ticks"),
    [
        ((1, 2, 4, 8, 16, 32), True, "1 2 4 8 16 32"),
        ((1, 2, 4, 8, 16, 32), False, "0 5 10 15 20 25 30 35"),
        ((1e3, 1e4, 1e5, 1e6), True, "1k 10k 100k 1M"),
        ([0.4 * 1.1**n for n in range(40)], True, "0.2 0.5 1 2 5 10 20"),
        ([0.4 * 1.3**n for n in range(60)], True, "1 10 100 1k 10k 100k 1M"),
    ],
)
def test_ticks_are_at_the_values_if_they_fit_or_at_round_numbers(values: list[float], log: bool, ticks: str) -> None:
    """An axis has only as many ticks as its labels leave room for."""
    assert " ".join(map(format_tick, Axis.with_ticks_at_values(values, 0, 600, log=log).ticks)) == ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.5, "1.50"),
        (12.345, "12.3"),
        (999.4, "999"),
        (1234.4, "1,234"),
        (1234567, "1,235,000"),
    ],
)
def test_numbers_have_three_or_four_significant_digits(value: float, text: str) -> None:
    """More digits would suggest a precision that a measurement does not have."""
    assert format_number(value) == text
