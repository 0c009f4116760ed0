"""A picture in SVG: a white card, so that it can be read on a dark page too, and what is drawn on it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

WIDTH = 720
EDGE = 24
CHARACTER = 6.6  # the width of an average one
INK, FAINT, PALE, GRID, FRAME = "#24292f", "#57606a", "#9aa4ae", "#e4e8ec", "#d0d7de"
# Okabe and Ito's, which differ for everybody, without the yellow, which is lost on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_SHAPES = (
    "-4,0 0,-4 4,0 0,4",
    "-3.5,-3.5 3.5,-3.5 3.5,3.5 -3.5,3.5",
    "0,-4.5 4.2,3.5 -4.2,3.5",
    "0,4.5 4.2,-3.5 -4.2,-3.5",
)
_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


class Picture:
    """A card with a title."""

    def __init__(self, title: str, height: float) -> None:
        size = {"width": f"{WIDTH}", "height": f"{height:g}", "viewBox": f"0 0 {WIDTH} {height:g}"}
        text = {"font-family": _FONT, "font-size": "12", "role": "img"}
        self._root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **text})
        ET.SubElement(self._root, "title").text = title
        self.add("rect", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=8, fill="#ffffff", stroke=FRAME)
        self.write(title, EDGE, 32, font_size=15, font_weight=600)

    def add(self, tag: str, **attributes: str | float) -> ET.Element:
        """Draw something; numbers are rounded to what a screen shows."""
        words = {name.replace("_", "-"): v if isinstance(v, str) else f"{v:.5g}" for name, v in attributes.items()}
        return ET.SubElement(self._root, tag, words)

    def write(self, text: str, x: float, y: float, **attributes: str | float) -> None:
        """Write something; whatever it says is text, not markup."""
        ink: dict[str, str | float] = {"fill": INK}
        self.add("text", x=x, y=y, **ink | attributes).text = text

    def line(self, start: tuple[float, float], end: tuple[float, float], stroke: str, width: float = 1) -> None:
        """Draw a straight line."""
        self.add("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], stroke=stroke, stroke_width=width)

    def mark(self, number: int, x: float, y: float) -> None:
        """Draw the mark of the line with this number."""
        place = f"translate({x:.5g} {y:.5g})"
        self.add("polygon", points=_SHAPES[number % len(_SHAPES)], fill=colour(number), transform=place)

    def __str__(self) -> str:
        ET.indent(self._root)
        return ET.tostring(self._root, encoding="unicode") + "\n"


def colour(number: int) -> str:
    """The colour of the line with this number."""
    return COLOURS[number % len(COLOURS)]
