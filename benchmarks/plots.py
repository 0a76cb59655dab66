"""Four pictures of a report, as SVG that follows the reader's light or dark mode.

``bars`` draws lengths from zero, sorted, with the value at the end and a line for the spread.
``curves`` draws one line for each subject over a distance. ``points`` draws subjects by two
figures. Optilock's subjects have the accent colour. What loses updates has a dashed outline, or is
hollow. Each file has a title and a description for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Curve", "Point", "bars", "curves", "points"]

_WIDE = 720
#: Left of a bar, for its name; right of it, for its value.
_NAMES, _VALUES = 190, 150
_ROW, _THICK, _TOP = 30, 16, 52
_TALL = 340
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.small { font-size: 12px; fill: #57606a }
.axis { fill: none; stroke: #8c959f; stroke-width: 1 }
.other { fill: #8c959f; stroke: #8c959f }
.ours { fill: #0969da; stroke: #0969da }
.loses { fill: none; stroke-dasharray: 4 3; stroke-width: 1.5 }
.hollow { fill: none; stroke-width: 2 }
.line { fill: none; stroke-width: 2 }
.spread { stroke: #24292f; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .axis, .other { stroke: #6e7681 }
  .other { fill: #6e7681 }
  .ours { fill: #58a6ff; stroke: #58a6ff }
  .loses, .hollow, .line { fill: none }
  .spread { stroke: #e6edf3 }
}
</style>"""


@dataclass(frozen=True)
class Bar:
    """One subject: a figure, and the smallest and largest of the run."""

    name: str
    value: float
    low: float
    high: float
    ours: bool = False
    loses: bool = False


@dataclass(frozen=True)
class Curve:
    """One subject over a distance: x and y of each place."""

    name: str
    places: Sequence[tuple[float, float]]
    ours: bool = False


@dataclass(frozen=True)
class Point:
    """One subject by two figures."""

    name: str
    x: float
    y: float
    ours: bool = False
    loses: bool = False


def bars(title: str, better: str, found: Iterable[Bar]) -> str:
    """Return a picture of bars, the shortest first."""
    rows = sorted(found, key=lambda bar: bar.value)
    most = max(bar.value for bar in rows)
    scale = (_WIDE - _NAMES - _VALUES) / most
    parts = []
    for number, bar in enumerate(rows):
        top = _TOP + number * _ROW
        middle, end = top + _THICK / 2, _NAMES + bar.value * scale
        low, high = (_NAMES + min(each, most * 1.2) * scale for each in (bar.low, bar.high))
        parts += [
            _text(_NAMES - 8, middle + 4, bar.name, anchor="end"),
            f'<rect class="{_class(bar.ours, bar.loses, "loses")}" x="{_NAMES}" y="{top}"'
            f' width="{end - _NAMES:.1f}" height="{_THICK}"/>',
            f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}"/>',
            _text(max(end, high) + 6, middle + 4, f"{bar.value:.2f}"),
        ]
    bottom = _TOP + len(rows) * _ROW
    parts.append(f'<path class="axis" d="M{_NAMES} {_TOP - 6}V{bottom - 6}"/>')
    says = "; ".join(f"{bar.name} {bar.value:.2f}" for bar in rows)
    return _picture(title, better, says, bottom + 4, parts)


def curves(title: str, better: str, unit: str, found: Sequence[Curve]) -> str:
    """Return a picture of lines over a distance, each with its name at the end."""
    xs = sorted({x for curve in found for x, _ in curve.places})
    box = _Box(max(xs), max(y for curve in found for _, y in curve.places))
    parts = box.axes(xs, unit)
    labels = _apart([box.y(curve.places[-1][1]) for curve in found])
    for curve, label in zip(found, labels, strict=True):
        way = " ".join(f"{box.x(x):.1f},{box.y(y):.1f}" for x, y in curve.places)
        parts.append(f'<polyline class="{_class(curve.ours)} line" points="{way}"/>')
        parts.append(_text(box.right + 8, label + 4, f"{curve.name} {curve.places[-1][1]:.2f}"))
    says = "; ".join(
        f"{curve.name}: " + ", ".join(f"{y:.2f} at {x:g} {unit}" for x, y in curve.places)
        for curve in found
    )
    return _picture(title, better, says, _TALL, parts)


def points(title: str, better: str, axes: tuple[str, str], found: Sequence[Point]) -> str:
    """Return a picture of points with their names."""
    box = _Box(max(one.x for one in found) * 1.05, max(one.y for one in found) * 1.1)
    parts = box.axes([0, round(max(one.x for one in found))], axes[0], axes[1])
    for one in found:
        x, y = box.x(one.x), box.y(one.y)
        parts.append(
            f'<circle class="{_class(one.ours, one.loses, "hollow")}" cx="{x:.1f}" cy="{y:.1f}"'
            ' r="6"/>'
        )
    labels = _apart([box.y(one.y) for one in found])
    for one, label in zip(found, labels, strict=True):
        left = box.x(one.x) > _WIDE * 0.55
        x = round(box.x(one.x) + (-14 if left else 14), 1)
        parts.append(f'<path class="axis" d="M{box.x(one.x):.1f} {box.y(one.y):.1f}L{x} {label}"/>')
        parts.append(_text(x, label + 4, one.name, anchor="end" if left else "start"))
    says = "; ".join(f"{one.name}: {one.x:,.0f} {axes[0]}, {one.y:.1f} {axes[1]}" for one in found)
    return _picture(title, better, says, _TALL, parts)


class _Box:
    """The area of a picture with two axes, both from zero."""

    left, right, top, bottom = 60, 480, _TOP + 10, _TALL - 50

    def __init__(self, most_x: float, most_y: float) -> None:
        self._most_x, self._most_y = most_x or 1.0, most_y or 1.0

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / self._most_x

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self._most_y

    def axes(self, marks: Iterable[float], unit: str, other: str = "") -> list[str]:
        parts = [f'<path class="axis" d="M{self.left} {self.top}V{self.bottom}H{self.right}"/>']
        for mark in marks:
            parts.append(_text(self.x(mark), self.bottom + 18, f"{mark:,.0f}", "small", "middle"))
        highest = self._most_y if self._most_y < 10 else round(self._most_y)
        for value in (0, highest):
            label = f"{value:.2f}" if 0 < value < 10 else f"{value:,.0f}"
            parts.append(_text(self.left - 6, self.y(value) + 4, label, "small", "end"))
        middle = (self.left + self.right) / 2
        parts.append(_text(middle, self.bottom + 38, unit, "small", "middle"))
        parts.append(_text(self.left, self.top - 8, other, "small"))
        return parts


def _apart(places: Sequence[float]) -> list[float]:
    """Return where labels at these heights are put, so that no two overlap."""
    found = list(places)
    last = -math.inf
    for number in sorted(range(len(found)), key=found.__getitem__):
        last = found[number] = max(found[number], last + 16)
    return found


def _class(ours: bool, loses: bool = False, how: str = "") -> str:
    return ("ours" if ours else "other") + (f" {how}" if loses else "")


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    kind = f' class="{name}"' if name else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, better: str, says: str, tall: float, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {tall:.0f}" role="img"'
        ' aria-labelledby="title desc">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(says)}</desc>'
    )
    captions = [_text(0, 18, title, "title"), _text(0, 36, better, "small")]
    return "\n".join([head, _STYLE, *captions, *parts, "</svg>"]) + "\n"
