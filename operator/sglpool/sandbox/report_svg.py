"""Small pieces of SVG: a time axis, a scale, curves, steps, bands and marks, as text.

Colours are classes, which the page's style sheet fills in for light and dark. Not here: what is drawn
(`report_charts`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

WIDTH = 1000
LEFT = 84
RIGHT = 968
"""Where the time axis begins and ends, the same in every chart, so that what is above each other was at once."""
TOP = 26
"""Room for the numbers of the marks."""
BOTTOM = 24
"""Room for the time axis."""
MARK_WIDTH = 17.0
_TIME_STEPS_S = (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_TIME_TICKS = 13

Point = tuple[float, float | None]
"""Seconds and a value; without a value the curve has a gap."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Seconds to pixels.

    Attributes:
        end_s: Where the axis ends; it begins at 0.
    """

    end_s: float

    def x(self, at_s: float) -> float:
        """Where a moment is."""
        return LEFT + (RIGHT - LEFT) * min(max(at_s / self.end_s, 0.0), 1.0)

    def ticks_s(self) -> list[int]:
        """Moments with a label, round ones."""
        step_s = next((step for step in _TIME_STEPS_S if self.end_s / step <= _MOST_TIME_TICKS), _TIME_STEPS_S[-1])
        return list(range(0, int(self.end_s) + 1, step_s))


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to pixels.

    Attributes:
        most: The largest value.
        top: Where that is.
        bottom: Where 0 is.
    """

    most: float
    top: float
    bottom: float

    def y(self, value: float) -> float:
        """Where a value is; larger ones stay at the edge."""
        return self.bottom - (self.bottom - self.top) * min(max(value / self.most, 0.0), 1.0)


def clock(at_s: float) -> str:
    """A moment as minutes and seconds."""
    return f"{int(at_s) // 60}:{int(at_s) % 60:02d}"


def round_ticks(most: float, about: int = 4) -> list[float]:
    """0 and a few round values, the last of them not below `most`; up to 1 where there is nothing to show."""
    most = most if most > 0 else 1.0
    raw = most / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def figure(body: Iterable[str], height: float, label: str) -> str:
    """A whole chart; `label` is read out instead of it."""
    inner = "\n".join(body)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{html.escape(label)}">\n'
        f"{inner}\n</svg>"
    )


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def band(x1: float, x2: float, top: float, bottom: float, kind: str, title: str = "") -> str:
    """A rectangle, with words that a pointer over it shows."""
    words = f"<title>{html.escape(title)}</title>" if title else ""
    size = f'width="{max(x2 - x1, 0.5):.1f}" height="{bottom - top:.1f}"'
    return f'<rect x="{x1:.1f}" y="{top:.1f}" {size} class="{kind}">{words}</rect>'


def curve(points: Sequence[Point], axis: TimeAxis, scale: Scale, kind: str) -> str:
    """A line through the points, with gaps; a point without neighbours is a dot."""
    parts = []
    for run in _runs(points):
        placed = [(axis.x(at_s), scale.y(value)) for at_s, value in run]
        if len(placed) == 1:
            x, y = placed[0]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" class="{kind} dot"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline points="{path}" class="{kind}"/>')
    return "".join(parts)


def steps(points: Sequence[Point], axis: TimeAxis, scale: Scale, kind: str) -> str:
    """A staircase: each value holds until the next point."""
    stairs: list[Point] = []
    before: float | None = None
    for at_s, value in points:
        if stairs and before is not None and value is not None and value != before:
            stairs.append((at_s, before))
        stairs.append((at_s, value))
        before = value
    return curve(stairs, axis, scale, kind)


def stacked_steps(lower: Sequence[Point], upper: Sequence[Point], axis: TimeAxis, scale: Scale, kind: str) -> str:
    """The area between two staircases of the same moments."""
    if len(upper) < 2:
        return ""
    above = _corners(upper, axis, scale)
    below = _corners(lower, axis, scale)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*above, *reversed(below)])
    return f'<polygon points="{path}" class="{kind}"/>'


def area(points: Sequence[Point], axis: TimeAxis, scale: Scale, kind: str) -> str:
    """What is under a curve, with gaps."""
    parts = []
    for run in _runs(points):
        placed = [(axis.x(at_s), scale.y(value)) for at_s, value in run]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        first, last = placed[0][0], placed[-1][0]
        ends = f"{last:.1f},{scale.bottom:.1f} {first:.1f},{scale.bottom:.1f}"
        parts.append(f'<polygon points="{path} {ends}" class="{kind}"/>')
    return "".join(parts)


def time_axis(axis: TimeAxis, bottom: float) -> Iterator[str]:
    """The line at the bottom and its labels."""
    yield line(LEFT, bottom, RIGHT, bottom, "axis")
    for at_s in axis.ticks_s():
        yield line(axis.x(at_s), bottom, axis.x(at_s), bottom + 4, "axis")
        yield text(axis.x(at_s), bottom + 17, clock(at_s), "tick", "middle")


def marks(axis: TimeAxis, moments_s: Sequence[float], top: float, bottom: float) -> Iterator[str]:
    """A numbered hairline for each moment; numbers that would meet give way."""
    places = [axis.x(at_s) for at_s in moments_s]
    for number, (x, at) in enumerate(zip(places, apart(places, MARK_WIDTH, RIGHT), strict=True), 1):
        yield line(x, top, x, bottom, "mark")
        yield f'<circle cx="{at:.1f}" cy="{top - 9:.1f}" r="8" class="badge"/>'
        yield text(at, top - 5, str(number), "number", "middle")


def apart(places: Sequence[float], width: float, most: float) -> list[float]:
    """Places in the same order, each so far from the next: they give way to the right, and at the end to the left."""
    moved: list[float] = []
    for x in places:
        moved.append(max(x, moved[-1] + width) if moved else x)
    limit = most
    for at in range(len(moved) - 1, -1, -1):
        moved[at] = min(moved[at], limit)
        limit = moved[at] - width
    return moved


def _corners(points: Sequence[Point], axis: TimeAxis, scale: Scale) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at_s, value in points:
        x, y = axis.x(at_s), scale.y(value or 0.0)
        if found and found[-1][1] != y:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return found


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """The stretches without a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at_s, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at_s, value))
    return [run for run in runs if run]
