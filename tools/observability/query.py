"""Figures of a Prometheus for the panels of a dashboard.

Not here: drawing them (`draw`).
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.observability.panels import Panel, Query

LIMIT_S = 20.0


class QueryError(Exception):
    """Prometheus refused an expression; the message holds both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a panel.

    Attributes:
        name: As the legend has it.
        points: Unix time and value, those without a number left out.
    """

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and when to look.

    Attributes:
        url: The Prometheus.
        begin_s: Unix time.
        end_s: Unix time.
        step_s: Between two values.
        variables: What stands for Grafana's variables, without their `$`.
    """

    url: str
    begin_s: float
    end_s: float
    step_s: float
    variables: Mapping[str, str]

    def filled(self, expr: str) -> str:
        """An expression as Grafana would send it."""
        for name, value in self.variables.items():
            expr = expr.replace(f"${name}", value)
        return expr


def series_of(panel: Panel, place: Place) -> list[list[Series]]:
    """What each query of a panel finds."""
    return [_ask(query, place) for query in panel.queries]


def _ask(query: Query, place: Place) -> list[Series]:
    expr = place.filled(query.expr)
    window = {"start": place.begin_s, "end": place.end_s, "step": place.step_s}
    answer = get(place.url, "/api/v1/query_range", query=expr, **window)
    return [_series(found, query.legend) for found in answer["result"]]


def _series(found: Mapping[str, Any], legend: str) -> Series:
    labels = found["metric"]
    values = ((float(time_s), float(value)) for time_s, value in found["values"])
    name = re.sub(r"\{\{(\w+)\}\}", lambda part: labels.get(part[1], ""), legend) if legend else ""
    return Series(name=name, points=tuple(point for point in values if math.isfinite(point[1])))


def get(url: str, path: str, **parameters: Any) -> Any:
    """`data` of an answer of Prometheus.

    Raises:
        QueryError: It refuses.
    """
    try:
        with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(parameters)}", timeout=LIMIT_S) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise QueryError(f"{parameters.get('query', path)}: {error.read().decode()}") from None
