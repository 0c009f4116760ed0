"""The benchmark's arithmetic and what it shows; what it measures is not a unit test's affair."""

from __future__ import annotations

import datetime as dt
import io
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from infra.local.progress import Progress
from tests.bench.axes import Axis, short
from tests.bench.charts import bar_chart, line_chart
from tests.bench.effort import FULL, QUICK
from tests.bench.report import Report
from tests.bench.results import Chart, Finding, Line, Row, Section
from tests.bench.rounds import Rounds, interleave
from tests.bench.tables import number, of_finding, of_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bench.effort import Effort

HOSTILE = "</text><script>&\"'|"


ROUNDS = Rounds({"ours": [1_200.0, 1_234.4, 1_300.0], "pgbench": [2_000.0] * 3, "other": [400.0] * 3})


def _row(path: str = "grant", *, target: float | None = 0.5, stretch: float | None = 0.8, ahead: bool = False) -> Row:
    return Row.of(ROUNDS, path, ours="ours", limit="pgbench", target=target, stretch=stretch, peer="other", ahead=ahead)


def _chart(label: str = "grant", *, name: str = "clients", log_y: bool = False) -> Chart:
    lines = (Line(label, ((1, 900.0), (32, 4_000.0))), Line("pgbench", ((1, 0.0), (32, 7_000.0))))
    return Chart(name, label, label, label, lines, log_x=True, log_y=log_y)


def _report(*sections: Section, effort: Effort = FULL) -> Report:
    return Report(effort, dt.date(2026, 1, 2), {"PostgreSQL": "18.6"}, sections)


def _texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter() if element.tag.endswith("text")]  # noqa: S314 - ours


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """A round in which the machine was slow for both counts like the others: 0.5, 0.6, 0.9, not 90 / 110."""
    rounds = Rounds({"ours": [50.0, 6.0, 90.0], "limit": [100.0, 10.0, 100.0]})
    ratio = rounds.ratio("ours", to="limit")
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.6, 0.9)
    assert rounds.rate("ours").median == 50.0


def test_contenders_that_missed_a_round_cannot_be_compared() -> None:
    """Pairs of different rounds would say nothing."""
    with pytest.raises(ValueError, match="longer"):
        Rounds({"ours": [1.0], "limit": [1.0, 2.0]}).ratio("ours", to="limit")


def test_each_contender_is_first_in_its_turn() -> None:
    """Who comes first may find a colder machine."""
    order: list[str] = []

    def contender(name: str) -> Callable[[], float]:
        def measure() -> float:
            order.append(name)
            return float(len(order))

        return measure

    measured = interleave("test", 4, {name: contender(name) for name in "abc"}, Progress(io.StringIO()))
    assert "".join(order) == "abcbcacababc"
    assert measured.rates["b"] == [2.0, 4.0, 9.0, 11.0]


def test_the_table_shows_rates_ratios_targets_and_the_peer() -> None:
    """One line for each path."""
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


def test_a_row_has_a_target_a_stretch_and_a_peer_to_beat_only_where_they_are_given() -> None:
    """A path without a target is shown and cannot miss it; being slower than a peer counts only if it is a target."""
    slow = Rounds({"ours": [3.0], "limit": [4.0], "peer": [3.0]})
    line = partial(Row.of, slow, "replay", ours="ours", limit="limit", peer="peer")
    assert of_row(line())[4:] == ["", "", "peer", "1.00 [1.00, 1.00]"]
    assert of_row(line(target=0.75))[4:6] == ["0.75 ✓", ""]
    assert of_row(line(ahead=True))[4:] == ["", "", "peer", "1.00 [1.00, 1.00] ✗"]
    assert of_row(_row(ahead=True))[-1] == "3.09 [3.00, 3.25] ✓"
    assert list(line().targets()) == []
    assert [target.met for target in line(target=0.75, ahead=True).targets()] == [True, False]


def test_a_small_figure_is_held_against_its_target_and_its_stretch() -> None:
    """Exactly the target is enough; a stretch that is not reached is no miss."""
    on_target = Finding.at_most("import", "220 ms", 220.0, 220, "ms", 190)
    assert of_finding(on_target) == ["import", "220 ms", "220 ms ✓", "190 ms ✗"]
    assert of_finding(Finding.at_most("import", "221 ms", 220.5, 220, "ms")) == ["import", "221 ms", "220 ms ✗", ""]
    assert _report(Section("Cold start", findings=[on_target])).misses() == []


@pytest.mark.parametrize(("peer", "met"), [("other", True), ("pgbench", False), ("ours", False)])
def test_a_peer_is_beaten_only_by_being_faster(peer: str, met: bool) -> None:
    """As fast is not ahead."""
    (target,) = Finding.against(ROUNDS, "ours", peer, ahead=True).targets()
    assert (target.wanted, target.met) == ("ahead", met)
    assert list(Finding.against(ROUNDS, "ours", peer).targets()) == []


def test_every_target_is_listed_as_met_or_missed() -> None:
    """A row by its median ratio, a finding by its own judgement; a figure without a target is not in the list."""
    findings = [
        Finding("start", "210 ms", "180 ms", met=False),
        Finding("size", "3 MB"),
        Finding("up", "1 s", "2 s", met=True),
    ]
    report = _report(Section("Requests", [_row(), _row("relay", target=0.7, ahead=True)], findings))
    assert report.misses() == ["relay: 0.617 of the limit instead of 0.70", "start: 210 ms instead of 180 ms"]
    assert report.summary().splitlines() == [
        "3 of 5 targets are met.",
        "  ✓ grant: 0.617 of the limit, target 0.50",
        "  ✓ relay against other: 3.09 times, target ahead",
        "  ✓ up: 1 s, target 2 s",
        "  ✗ relay: 0.617 of the limit instead of 0.70",
        "  ✗ start: 210 ms instead of 180 ms",
    ]
    assert "0.70 ✗" in report.text()
    assert "180 ms ✗" in report.text()
    page = report.markdown("charts")
    assert "| up | 1 s | 2 s ✓ |  |" in page
    assert "3 of 5 targets are met." in page
    assert "- missed: start: 210 ms instead of 180 ms" in page


def test_a_page_has_its_charts_beside_it_and_none_of_an_earlier_run(tmp_path: Path) -> None:
    """What the page refers to is there."""
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


def test_a_lesser_run_says_so_at_the_top() -> None:
    """Nobody quotes it by mistake."""
    assert "A quick run" in _report(effort=QUICK).markdown("charts").splitlines()[2]
    assert "run**" not in _report().markdown("charts")


def test_a_cell_stays_a_cell() -> None:
    """Neither a bar nor a tag in a name changes the page."""
    line = next(one for one in _report(Section("S", [_row(HOSTILE)])).markdown("x").splitlines() if "script" in one)
    assert "<" not in line
    assert line.replace("\\|", "").count("|") == 9


@pytest.mark.parametrize("log_y", [False, True])
def test_a_chart_is_well_formed_whatever_its_labels_say(log_y: bool) -> None:
    """Title, both axes and the legend are text; a zero, which a logarithmic axis cannot hold, is left out."""
    picture = line_chart(_chart(HOSTILE, log_y=log_y))
    assert _texts(picture).count(HOSTILE) == 4
    assert "script" not in {element.tag for element in ET.fromstring(picture).iter()}  # noqa: S314 - ours
    assert picture == line_chart(_chart(HOSTILE, log_y=log_y))


def test_a_chart_of_one_point_or_none_is_drawn() -> None:
    """The least effort measures once."""
    for points in ((), ((5.0, 3.0),)):
        for log in (False, True):
            assert "one" in _texts(line_chart(Chart("n", "t", "x", "y", (Line("one", points),), log_x=log, log_y=log)))


def test_bars_show_the_ratio_of_each_row() -> None:
    """Also one that is beyond its limit, and one without a target."""
    beyond = Rounds({"ours": [3.0], "limit": [2.0]})
    rows = [_row(HOSTILE), Row.of(beyond, "sweep", ours="ours", limit="limit", target=0.8), _row("query", target=None)]
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
def test_ticks_stand_at_few_values_or_at_round_ones(values: list[float], log: bool, ticks: str) -> None:
    """As many as there is room for."""
    assert " ".join(map(short, Axis.through(values, 0, 600, log=log).ticks)) == ticks


@pytest.mark.parametrize(
    ("value", "shown"),
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
def test_figures_have_as_many_digits_as_mean_something(value: float, shown: str) -> None:
    """Nobody measures a rate to six digits."""
    assert number(value) == shown
