"""What a dashboard is made of, before it becomes Grafana's JSON.

Not here: the JSON (`grafana`), the panels themselves (`pool`, `router`, `autoscaler`, `operator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["timeseries", "stat", "table"]
Unit = Literal["short", "s", "percentunit", "bytes", "reqps", "tokens", "tokens/s", "tokens/min", "cores", "per_s", ""]

COLUMNS = 24
"""Width of Grafana's grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression of a panel.

    Attributes:
        expr: PromQL, with Grafana's variables.
        legend: Names its series: `{{label}}` stands for a label's value.
    """

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: What it shows.
        text: What a good and a bad picture look like, and where the figures come from.
        unit: Of its values.
        queries: What is drawn.
        kind: How.
        width: Columns of the grid.
        height: Rows of the grid.
        stacked: Whether series stand on each other.
        top: Upper end of the axis, None for Grafana's choice.
    """

    title: str
    text: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    top: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard.

    Attributes:
        uid: Its fixed name in addresses, and that of its file.
        title: For people.
        text: What it is for.
        rows: Its panels.
        of_pool: Whether it is about one pool, chosen by namespace and name.
    """

    uid: str
    title: str
    text: str
    rows: tuple[Row, ...] = field(default=())
    of_pool: bool = True

    @property
    def panels(self) -> Sequence[Panel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]


def chart(title: str, text: str, unit: Unit, *queries: tuple[str, str], **more: object) -> Panel:
    """A panel of lines from pairs of expression and legend."""
    made = tuple(Query(expr=expr, legend=legend) for expr, legend in queries)
    return Panel(title=title, text=text, unit=unit, queries=made, **more)  # type: ignore[arg-type]


def figure(title: str, text: str, unit: Unit, expr: str, *, width: int = 4) -> Panel:
    """A panel of one number, or of one word: the legend of the series."""
    return Panel(
        title=title, text=text, unit=unit, queries=(Query(expr=expr, legend=""),), kind="stat", width=width, height=4
    )
