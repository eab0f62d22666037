"""A dashboard as a page of pictures, close enough to Grafana's to see whether its panels say what they should.

One HTML file without anything from outside. Not here: the figures (`query`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tools.observability.grafana import height_of, places
from tools.observability.panels import Dashboard, Panel, Row
from tools.observability.query import Series

Found = Sequence[Sequence[Series]]
"""What the queries of a panel have found."""

CELL_PX = (50, 30)
_COLOURS = (
    *("#3b78c2", "#d9822b", "#4a9c5d", "#b5475b", "#7d5fb2", "#3a9fa6", "#a0803a", "#c25f9c", "#6b7a86"),
    *("#1f3f70", "#7a4210", "#1d5a2d", "#6e1f30", "#43296e", "#145a60"),
)
_STYLE = """
body{margin:16px;background:#f3f4f6;color:#1c1f23;font:13px system-ui,sans-serif;width:1200px}
h1{font-size:18px;margin:0 0 4px}h2{font-size:14px;margin:14px 0 4px}
.row{position:relative}.panel{position:absolute;box-sizing:border-box;padding:3px}
.panel>div{background:#fff;border:1px solid #d5d9de;border-radius:4px;height:100%;box-sizing:border-box;padding:5px 8px;
overflow:hidden}.title{font-weight:600;white-space:nowrap}.big{font-size:26px;text-align:center;padding-top:16px}
.none{color:#b00020;padding-top:30px;text-align:center}.legend{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;
font-size:11px}.legend i{display:inline-block;width:9px;height:3px;margin:0 3px 3px 8px}
table{font-size:11px;border-collapse:collapse}td{padding:0 12px 0 0}svg text{font-size:10px;fill:#667}
"""


def page_of(dashboard: Dashboard, found: Sequence[Found]) -> str:
    """The page.

    Args:
        dashboard: What to draw.
        found: Figures of each of its panels, in order.
    """
    figures = iter(found)
    rows = "".join(_row(row, [next(figures) for _ in row.panels]) for row in dashboard.rows)
    head = f"<!doctype html><meta charset=utf-8><title>{escape(dashboard.title)}</title><style>{_STYLE}</style>"
    return f"{head}<h1>{escape(dashboard.title)}</h1>{escape(dashboard.text)}{rows}\n"


def height_px(dashboard: Dashboard) -> int:
    """Of the whole page."""
    return 90 + sum(height_of(row) * CELL_PX[1] + 40 for row in dashboard.rows)


def _row(row: Row, found: Sequence[Found]) -> str:
    width_px, line_px = CELL_PX
    panels = []
    for panel, (left, down), figures in zip(row.panels, places(row), found, strict=True):
        box = (panel.width * width_px, panel.height * line_px)
        style = f"left:{left * width_px}px;top:{down * line_px}px;width:{box[0]}px;height:{box[1]}px"
        content = _content(panel, figures, (box[0] - 24, box[1] - 56))
        title = f'<div class=title title="{escape(panel.text)}">{escape(panel.title)}</div>'
        panels.append(f'<div class=panel style="{style}"><div>{title}{content}</div></div>')
    height = f"height:{height_of(row) * line_px}px"
    return f'<h2>{escape(row.title)}</h2><div class=row style="{height}">{"".join(panels)}</div>'


def _content(panel: Panel, found: Found, size: tuple[int, int]) -> str:
    lines = [each for series in found for each in series if each.points]
    if not lines:
        return "<div class=none>no data</div>"
    if panel.kind == "stat":
        last_s = max(line.points[-1][0] for line in lines)
        now = [line for line in lines if line.points[-1][0] == last_s]
        words = ", ".join(line.name if panel.unit == "" else text_of(line.points[-1][1], panel.unit) for line in now)
        return f"<div class=big>{escape(words)}</div>"
    if panel.kind == "table":
        cells = "".join(f"<tr><td>{escape(line.name)}<td>{line.points[-1][1]:g}" for line in lines)
        return f"<table>{cells}</table>"
    return _chart(panel, lines, size)


def _chart(panel: Panel, lines: Sequence[Series], size: tuple[int, int]) -> str:
    drawn = _stacked(lines) if panel.stacked else lines
    values = [value for line in drawn for _, value in line.points]
    low, high = min(0.0, *values), panel.top or _ceiling(max(values))
    times = [time_s for line in drawn for time_s, _ in line.points]
    begin_s, span_s = min(times), max(max(times) - min(times), 1.0)
    width, height = size[0] - 52, size[1] - 18

    def at(time_s: float, value: float) -> tuple[float, float]:
        share = (min(value, high) - low) / (high - low)
        return 46 + (time_s - begin_s) / span_s * width, 6 + (1 - share) * height

    parts = []
    for mark in (low, low + (high - low) / 2, high):
        y = at(begin_s, mark)[1]
        parts.append(f'<line x1=46 x2="{46 + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e6ea"/>')
        parts.append(f'<text x=42 y="{y + 3:.0f}" text-anchor=end>{escape(text_of(mark, panel.unit))}</text>')
    for number, line in enumerate(drawn):
        points = [at(*point) for point in line.points]
        colour = _COLOURS[number % len(_COLOURS)]
        if panel.stacked:
            # The area between a series and those below it: one that is 0 is not to be seen, as in Grafana.
            floor = [
                at(time_s, top - own) for (time_s, top), (_, own) in zip(line.points, lines[number].points, strict=True)
            ]
            parts.append(f'<polygon points="{_path([*points, *reversed(floor)])}" fill="{colour}" fill-opacity=.6 />')
            continue
        parts.append(f'<polyline points="{_path(points)}" fill="none" stroke="{colour}" stroke-width=1.5 />')
        if len(line.points) == 1:
            x, y = at(*line.points[0])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r=2 fill="{colour}"/>')
    parts.append(f'<text x=46 y="{height + 18}">0 s</text>')
    parts.append(f'<text x="{46 + width}" y="{height + 18}" text-anchor=end>{span_s:.0f} s</text>')
    legend = "".join(
        f'<i style="background:{_COLOURS[number % len(_COLOURS)]}"></i>{escape(line.name.strip()) or "value"}'
        for number, line in enumerate(lines)
    )
    return f'<svg width="{size[0]}" height="{size[1]}">{"".join(parts)}</svg><div class=legend>{legend}</div>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _stacked(lines: Sequence[Series]) -> list[Series]:
    """Each line on the sum of those before it."""
    sums: dict[float, float] = {}
    found = []
    for line in lines:
        points = []
        for time_s, value in line.points:
            sums[time_s] = sums.get(time_s, 0.0) + value
            points.append((time_s, sums[time_s]))
        found.append(Series(name=line.name, points=tuple(points)))
    return found


def _ceiling(value: float) -> float:
    """A round number that is not below a value."""
    if value <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 1.5, 2, 3, 5, 7.5, 10) if step * factor >= value * 0.9999)


def text_of(value: float, unit: str) -> str:
    """A value with its unit, short."""
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
