"""An SVG picture with a white background, so that it is readable on a dark page too."""

from __future__ import annotations

from xml.etree import ElementTree as ET

WIDTH = 720
EDGE = 24
CHARACTER = 6.6  # average width in pixels
INK, FAINT, PALE, GRID, FRAME = "#24292f", "#57606a", "#9aa4ae", "#e4e8ec", "#d0d7de"
# The palette of Okabe and Ito, which colour-blind readers can distinguish, without yellow, which is invisible on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_SHAPES = (
    "-4,0 0,-4 4,0 0,4",
    "-3.5,-3.5 3.5,-3.5 3.5,3.5 -3.5,3.5",
    "0,-4.5 4.2,3.5 -4.2,3.5",
    "0,4.5 4.2,-3.5 -4.2,-3.5",
)
_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


class Picture:
    """White card with a title, to draw on."""

    def __init__(self, title: str, height: float) -> None:
        size = {"width": f"{WIDTH}", "height": f"{height:g}", "viewBox": f"0 0 {WIDTH} {height:g}"}
        text = {"font-family": _FONT, "font-size": "12", "role": "img"}
        self._root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **text})
        ET.SubElement(self._root, "title").text = title
        self.add("rect", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=8, fill="#ffffff", stroke=FRAME)
        self.write(title, EDGE, 32, font_size=15, font_weight=600)

    def add(self, tag: str, **attributes: str | float) -> ET.Element:
        """Add an SVG element; numbers are rounded to five significant digits."""
        values = {name.replace("_", "-"): v if isinstance(v, str) else f"{v:.5g}" for name, v in attributes.items()}
        return ET.SubElement(self._root, tag, values)

    def write(self, text: str, x: float, y: float, **attributes: str | float) -> None:
        """Write text; markup in it is escaped."""
        ink: dict[str, str | float] = {"fill": INK}
        self.add("text", x=x, y=y, **ink | attributes).text = text

    def line(self, start: tuple[float, float], end: tuple[float, float], stroke: str, width: float = 1) -> None:
        """Draw a straight line."""
        self.add("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], stroke=stroke, stroke_width=width)

    def mark(self, number: int, x: float, y: float) -> None:
        """Draw a point of the line with this number."""
        place = f"translate({x:.5g} {y:.5g})"
        self.add("polygon", points=_SHAPES[number % len(_SHAPES)], fill=colour(number), transform=place)

    def __str__(self) -> str:
        ET.indent(self._root)
        return ET.tostring(self._root, encoding="unicode") + "\n"


def colour(number: int) -> str:
    """Return the colour of the line with this number."""
    return COLOURS[number % len(COLOURS)]
