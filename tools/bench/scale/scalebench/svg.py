"""A chart as SVG: curves with their spread over a logarithmic axis. The same chart gives the same bytes."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

_WIDTH, _HEIGHT = 720, 400  # the second grows with the notes
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 696, 78, 346  # of the plot
_LINE, _CAP, _DOT = 15, 4, 3.5
_INK, _GRID = "#333333", "#e4e4e4"
_LOGARITHMIC_FROM = 20.0  # times the least value


@dataclass(frozen=True)
class Mark:
    """A value, and from where to where it was found."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    name: str
    color: str
    marks: list[Mark]
    dashes: str = ""


@dataclass(frozen=True)
class Chart:
    """ticks: places of the horizontal axis and their words. notes: lines below."""

    title: str
    x_label: str
    y_label: str
    ticks: list[tuple[float, str]]
    curves: list[Curve]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Axis:
    """From `least` at `start` to `most` at `end`."""

    least: float
    most: float
    start: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, value = (math.log10(each) if self.logarithmic else each for each in (self.least, self.most, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def horizontal(chart: Chart) -> Axis:
    """Logarithmic, with a margin beside the first and the last tick."""
    places = [place for place, _ in chart.ticks]
    margin = (max(places) / min(places)) ** 0.04 if max(places) > min(places) else 2.0
    return Axis(min(places) / margin, max(places) * margin, _LEFT, _RIGHT, True)


def vertical(chart: Chart) -> tuple[Axis, list[float]]:
    """From zero, or logarithmic where the values are of several magnitudes; and its ticks."""
    values = [value for curve in chart.curves for mark in curve.marks for value in (mark.y, mark.low, mark.high)]
    least, most = min(values, default=1.0), max(values, default=1.0)
    if least > 0 and most / least >= _LOGARITHMIC_FROM:
        ticks = [10.0**power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]
        return Axis(ticks[0], ticks[-1], _BOTTOM, _TOP, True), ticks
    step = _step(most if most > 0 else 1.0)
    ticks = [step * number for number in range(math.ceil(max(most, step) / step - 1e-9) + 1)]
    return Axis(0.0, ticks[-1], _BOTTOM, _TOP, False), ticks


def _step(most: float) -> float:
    """1, 2 or 5 times a power of ten, of which four to ten make the greatest value."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= most / 4 * (1 + 1e-9))


def svg(chart: Chart) -> str:
    """The text of a file."""
    height = _HEIGHT + _LINE * len(chart.notes)
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {_WIDTH} {height}",
                              "width": str(_WIDTH), "height": str(height), "font-family": "sans-serif",
                              "font-size": "12"})  # fmt: skip
    ET.SubElement(root, "title").text = chart.title
    _add(root, "rect", width=_WIDTH, height=height, fill="white")
    _text(root, _LEFT, 22, chart.title, **{"font-size": "15", "font-weight": "bold"})
    x, (y, ticks) = horizontal(chart), vertical(chart)
    _axes(root, chart, x, y, ticks)
    for number, curve in enumerate(chart.curves):
        _legend(root, curve, 40 + _LINE * number)
        _curve(root, curve, x, y)
    for number, note in enumerate(chart.notes):
        _text(root, _LEFT, _HEIGHT + _LINE * number, note, **{"font-size": "11", "fill": "#666666"})
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode") + "\n"


def _axes(root: ET.Element, chart: Chart, x: Axis, y: Axis, ticks: list[float]) -> None:
    for tick in ticks:
        _add(root, "line", x1=_LEFT, x2=_RIGHT, y1=y.at(tick), y2=y.at(tick), stroke=_GRID)
        _text(root, _LEFT - 6, y.at(tick) + 4, f"{tick:,.6g}", **{"text-anchor": "end"})
    for place, word in chart.ticks:
        _add(root, "line", x1=x.at(place), x2=x.at(place), y1=_BOTTOM, y2=_BOTTOM + 5, stroke=_INK)
        _text(root, x.at(place), _BOTTOM + 19, word, **{"text-anchor": "middle"})
    _add(root, "path", d=f"M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}", fill="none", stroke=_INK)
    _text(root, (_LEFT + _RIGHT) / 2, _BOTTOM + 36, chart.x_label, **{"text-anchor": "middle"})
    middle = (_TOP + _BOTTOM) / 2
    _text(root, 16, middle, chart.y_label, **{"text-anchor": "middle", "transform": f"rotate(-90 16 {middle:g})"})


def _legend(root: ET.Element, curve: Curve, y: int) -> None:
    _add(root, "line", x1=_LEFT, x2=_LEFT + 24, y1=y, y2=y, **_stroke(curve), **{"stroke-width": 2})
    _text(root, _LEFT + 30, y + 4, curve.name)


def _curve(root: ET.Element, curve: Curve, x: Axis, y: Axis) -> None:
    """One path for the line, one for every spread, and a dot a value."""
    places = [(x.at(mark.x), y.at(mark.y), y.at(mark.low), y.at(mark.high)) for mark in curve.marks]
    line = "L".join(f"{across:.1f} {up:.1f}" for across, up, _, _ in places)
    spread = "".join(f"M{across - _CAP:.1f} {low:.1f}h{2 * _CAP}M{across:.1f} {low:.1f}V{high:.1f}"
                     f"M{across - _CAP:.1f} {high:.1f}h{2 * _CAP}" for across, _, low, high in places)  # fmt: skip
    if places:
        _add(root, "path", d=f"M{line}", fill="none", **_stroke(curve), **{"stroke-width": 2})
        _add(root, "path", d=spread, fill="none", stroke=curve.color)
    for across, up, _, _ in places:
        _add(root, "circle", cx=across, cy=up, r=_DOT, fill=curve.color)


def _stroke(curve: Curve) -> dict[str, str]:
    return {"stroke": curve.color, **({"stroke-dasharray": curve.dashes} if curve.dashes else {})}


def _text(root: ET.Element, x: float, y: float, words: str, **more: str) -> None:
    _add(root, "text", x=x, y=y, **{"fill": _INK, **more}).text = words


def _add(root: ET.Element, tag: str, **attributes: str | float) -> ET.Element:
    """Numbers to a tenth: of pixels."""
    written = {name: value if isinstance(value, str) else f"{round(value, 1):g}" for name, value in attributes.items()}
    return ET.SubElement(root, tag, written)
