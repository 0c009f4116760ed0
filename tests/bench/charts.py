"""Charts as SVG, drawn by hand: a plotting library would be 140 MB for four pictures.

The same figures give the same bytes.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tests.bench.axes import Axis, short
from tests.bench.picture import CHARACTER, EDGE, FAINT, GRID, INK, PALE, WIDTH, Picture, colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.results import Chart, Row

_MARKED = 20  # a line of more points is a curve, and its points are not marked
_PLOT = 270
_BAR, _TEXT = 34, 14
_NAME = 32  # characters of a row's name before it goes on in the next line
_MET, _MISSED = colour(0), colour(1)


def line_chart(chart: Chart) -> str:
    """Lines over a common axis. A point that a logarithmic axis cannot hold is left out."""
    lines = [
        [(x, y) for x, y in line.points if (x > 0 or not chart.log_x) and (y > 0 or not chart.log_y)]
        for line in chart.lines
    ]
    legend = _legend([line.label for line in chart.lines])
    top = legend[-1][1] + 42
    picture = Picture(chart.title, top + _PLOT + 60)
    for number, (line, (x, y)) in enumerate(zip(chart.lines, legend, strict=True)):
        picture.line((x, y - 4), (x + 20, y - 4), colour(number), 2)
        picture.mark(number, x + 10, y - 4)
        picture.write(line.label, x + 27, y)
    ys = Axis.over([y for points in lines for _, y in points] or [1], top + _PLOT, top, log=chart.log_y, most=7)
    left = EDGE + CHARACTER * max(len(short(tick)) for tick in ys.ticks) + 8
    xs = Axis.through([x for points in lines for x, _ in points] or [1], left, WIDTH - EDGE - 8, log=chart.log_x)
    _grid(picture, chart, xs, ys)
    for number, points in enumerate(lines):
        _line(picture, number, [(xs.at(x), ys.at(y)) for x, y in points])
    return str(picture)


def bar_chart(title: str, rows: Sequence[Row]) -> str:
    """A bar for each row's ratio to its limit, with the extremes of its rounds, and its target and stretch if any."""
    names = [textwrap.wrap(row.path, _NAME) for row in rows]
    height = max(_BAR, 8 + _TEXT * max(map(len, names)))
    top, left = 76, EDGE + CHARACTER * max(len(part) for name in names for part in name) + 10
    bottom = top + height * len(rows)
    picture = Picture(title, bottom + 44)
    picture.write("Share of the limit: the median, from the lowest to the highest round.", EDGE, 54, fill=FAINT)
    for x, width, ink, text in ((424, 3, INK, "target"), (488, 2, PALE, "stretch"), (560, 10, _MISSED, "below target")):
        picture.add("rect", x=x, y=44, width=width, height=12, fill=ink)
        picture.write(text, x + width + 6, 54, fill=FAINT)
    most = max(1.0, *(max(row.ratio.high, row.stretch or 0.0) for row in rows))
    axis = Axis.over([most], left, WIDTH - EDGE - 48, most=7)
    for tick in axis.ticks:
        place, text = axis.at(tick), "limit" if tick == 1 else short(tick)
        picture.line((place, top), (place, bottom), FAINT if tick == 1 else GRID)
        picture.write(text, place, bottom + 20, text_anchor="middle", fill=FAINT)
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        middle = top + height * (number + 0.5)
        for line, part in enumerate(name):
            y = middle + 4 + _TEXT * (line - (len(name) - 1) / 2)
            picture.write(part, axis.start - 10, y, text_anchor="end")
        _bar(picture, axis, row, middle)
    return str(picture)


def _line(picture: Picture, number: int, places: Sequence[tuple[float, float]]) -> None:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    picture.add("polyline", points=path, fill="none", stroke=colour(number), stroke_width=2, stroke_linejoin="round")
    for x, y in places if len(places) <= _MARKED else ():
        picture.mark(number, x, y)


def _bar(picture: Picture, axis: Axis, row: Row, y: float) -> None:
    ink = _MISSED if row.reaches(row.target) is False else _MET
    low, median, high = (axis.at(ratio) for ratio in (row.ratio.low, row.ratio.median, row.ratio.high))
    picture.add("rect", x=axis.start, y=y - 8, width=median - axis.start, height=16, rx=2, fill=ink, fill_opacity=0.75)
    for target, shade, width in ((row.stretch, PALE, 2), (row.target, INK, 3)):
        if target is not None:
            picture.line((axis.at(target), y - 13), (axis.at(target), y + 13), shade, width)
    picture.line((low, y), (high, y), INK, 1.5)
    for end in (low, high):
        picture.line((end, y - 4), (end, y + 4), INK, 1.5)
    picture.write(f"{row.ratio.median:.2f}", WIDTH - EDGE, y + 4, text_anchor="end", font_weight=600)


def _grid(picture: Picture, chart: Chart, xs: Axis, ys: Axis) -> None:
    picture.write(chart.y_label, EDGE, ys.end - 14, fill=FAINT)
    picture.write(chart.x_label, (xs.start + xs.end) / 2, ys.start + 42, text_anchor="middle", fill=FAINT)
    for tick in ys.ticks:
        picture.line((xs.start, ys.at(tick)), (xs.end, ys.at(tick)), GRID)
        picture.write(short(tick), xs.start - 8, ys.at(tick) + 4, text_anchor="end", fill=FAINT)
    for tick in xs.ticks:
        picture.line((xs.at(tick), ys.start), (xs.at(tick), ys.start + 5), FAINT)
        picture.write(short(tick), xs.at(tick), ys.start + 20, text_anchor="middle", fill=FAINT)
    picture.line((xs.start, ys.start), (xs.end, ys.start), FAINT)


def _legend(labels: Sequence[str]) -> list[tuple[float, float]]:
    """Where each label begins: one after the other, in as many rows as they need."""
    x, y, places = float(EDGE), 56.0, []
    for label in labels:
        width = 27 + CHARACTER * len(label)
        if x > EDGE and x + width > WIDTH - EDGE:
            x, y = float(EDGE), y + 20
        places.append((x, y))
        x += width + 22
    return places
