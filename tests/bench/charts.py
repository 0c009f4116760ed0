"""Charts as SVG, without a plotting library, which would add 140 MB for a few charts.

The same data gives the same bytes.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tests.bench.axes import Axis, format_tick
from tests.bench.picture import CHARACTER, EDGE, FAINT, GRID, INK, PALE, WIDTH, Picture, colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.results import Chart, Row

_MAX_MARKED_POINTS = 20  # a line with more points is a curve, and its points are not marked
_PLOT_HEIGHT = 270
_BAR_HEIGHT, _TEXT_HEIGHT = 34, 14
_MAX_NAME_LENGTH = 32  # in characters; a longer name is wrapped
_MET, _MISSED = colour(0), colour(1)


def line_chart(chart: Chart) -> str:
    """Draw the lines of a chart. A point that a logarithmic axis cannot show is left out."""
    lines = [
        [(x, y) for x, y in line.points if (x > 0 or not chart.log_x) and (y > 0 or not chart.log_y)]
        for line in chart.lines
    ]
    legend = _legend([line.label for line in chart.lines])
    top = legend[-1][1] + 42
    picture = Picture(chart.title, top + _PLOT_HEIGHT + 60)
    for number, (line, (x, y)) in enumerate(zip(chart.lines, legend, strict=True)):
        picture.line((x, y - 4), (x + 20, y - 4), colour(number), 2)
        picture.mark(number, x + 10, y - 4)
        picture.write(line.label, x + 27, y)
    x_values = [x for points in lines for x, _ in points] or [1]
    y_values = [y for points in lines for _, y in points] or [1]
    ys = Axis.with_round_ticks(y_values, top + _PLOT_HEIGHT, top, log=chart.log_y, max_ticks=7)
    left = EDGE + CHARACTER * max(len(format_tick(tick)) for tick in ys.ticks) + 8
    xs = Axis.with_ticks_at_values(x_values, left, WIDTH - EDGE - 8, log=chart.log_x)
    _grid(picture, chart, xs, ys)
    for number, points in enumerate(lines):
        _line(picture, number, [(xs.position(x), ys.position(y)) for x, y in points])
    return str(picture)


def bar_chart(title: str, rows: Sequence[Row]) -> str:
    """Draw a bar for the ratio of each row, with its lowest and highest round and its targets."""
    names = [textwrap.wrap(row.path, _MAX_NAME_LENGTH) for row in rows]
    height = max(_BAR_HEIGHT, 8 + _TEXT_HEIGHT * max(map(len, names)))
    top, left = 76, EDGE + CHARACTER * max(len(part) for name in names for part in name) + 10
    bottom = top + height * len(rows)
    picture = Picture(title, bottom + 44)
    picture.write("Share of the limit: median, lowest and highest round.", EDGE, 54, fill=FAINT)
    for x, width, ink, text in ((424, 3, INK, "target"), (488, 2, PALE, "stretch"), (560, 10, _MISSED, "below target")):
        picture.add("rect", x=x, y=44, width=width, height=12, fill=ink)
        picture.write(text, x + width + 6, 54, fill=FAINT)
    largest = max(1.0, *(max(row.ratio.high, row.stretch or 0.0) for row in rows))
    axis = Axis.with_round_ticks([largest], left, WIDTH - EDGE - 48, max_ticks=7)
    for tick in axis.ticks:
        place, text = axis.position(tick), "limit" if tick == 1 else format_tick(tick)
        picture.line((place, top), (place, bottom), FAINT if tick == 1 else GRID)
        picture.write(text, place, bottom + 20, text_anchor="middle", fill=FAINT)
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        middle = top + height * (number + 0.5)
        for line, part in enumerate(name):
            y = middle + 4 + _TEXT_HEIGHT * (line - (len(name) - 1) / 2)
            picture.write(part, axis.start - 10, y, text_anchor="end")
        _bar(picture, axis, row, middle)
    return str(picture)


def _line(picture: Picture, number: int, places: Sequence[tuple[float, float]]) -> None:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    picture.add("polyline", points=path, fill="none", stroke=colour(number), stroke_width=2, stroke_linejoin="round")
    for x, y in places if len(places) <= _MAX_MARKED_POINTS else ():
        picture.mark(number, x, y)


def _bar(picture: Picture, axis: Axis, row: Row, y: float) -> None:
    ink = _MISSED if row.reaches(row.target) is False else _MET
    low, median, high = (axis.position(ratio) for ratio in (row.ratio.low, row.ratio.median, row.ratio.high))
    picture.add("rect", x=axis.start, y=y - 8, width=median - axis.start, height=16, rx=2, fill=ink, fill_opacity=0.75)
    for target, shade, width in ((row.stretch, PALE, 2), (row.target, INK, 3)):
        if target is not None:
            picture.line((axis.position(target), y - 13), (axis.position(target), y + 13), shade, width)
    picture.line((low, y), (high, y), INK, 1.5)
    for end in (low, high):
        picture.line((end, y - 4), (end, y + 4), INK, 1.5)
    picture.write(f"{row.ratio.median:.2f}", WIDTH - EDGE, y + 4, text_anchor="end", font_weight=600)


def _grid(picture: Picture, chart: Chart, xs: Axis, ys: Axis) -> None:
    picture.write(chart.y_label, EDGE, ys.end - 14, fill=FAINT)
    picture.write(chart.x_label, (xs.start + xs.end) / 2, ys.start + 42, text_anchor="middle", fill=FAINT)
    for tick in ys.ticks:
        picture.line((xs.start, ys.position(tick)), (xs.end, ys.position(tick)), GRID)
        picture.write(format_tick(tick), xs.start - 8, ys.position(tick) + 4, text_anchor="end", fill=FAINT)
    for tick in xs.ticks:
        picture.line((xs.position(tick), ys.start), (xs.position(tick), ys.start + 5), FAINT)
        picture.write(format_tick(tick), xs.position(tick), ys.start + 20, text_anchor="middle", fill=FAINT)
    picture.line((xs.start, ys.start), (xs.end, ys.start), FAINT)


def _legend(labels: Sequence[str]) -> list[tuple[float, float]]:
    """Return the position of each label, in as many rows as the labels need."""
    x, y, places = float(EDGE), 56.0, []
    for label in labels:
        width = 27 + CHARACTER * len(label)
        if x > EDGE and x + width > WIDTH - EDGE:
            x, y = float(EDGE), y + 20
        places.append((x, y))
        x += width + 22
    return places
