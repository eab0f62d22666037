"""Dashboards as Grafana's JSON, ready to be imported or mounted.

Not here: what is on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.observability.panels import COLUMNS, Dashboard, Panel, Row

Json = dict[str, Any]

SCHEMA = 39
"""Of Grafana 10.4 and later; later ones migrate it by themselves."""
_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {
    "": "none",
    "tokens": "short",
    "tokens/s": "suffix: tokens/s",
    "tokens/min": "suffix: tokens/min",
    "cores": "suffix: cores",
    "per_s": "suffix: /s",
}
"""Units of ours that Grafana calls otherwise."""


def text_of(dashboard: Dashboard) -> str:
    """The file."""
    return json.dumps(dashboard_json(dashboard), indent=2) + "\n"


def dashboard_json(dashboard: Dashboard) -> Json:
    """One dashboard."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["sglpool"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [
            {"type": "dashboards", "title": "sglpool", "tags": ["sglpool"], "includeVars": True, "keepTime": True}
        ],
        "templating": {"list": _variables(dashboard)},
        "panels": list(_panels(dashboard)),
    }


def _variables(dashboard: Dashboard) -> list[Json]:
    source: Json = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    if not dashboard.of_pool:
        return [source]
    values = {
        "namespace": "label_values(sglpool_pool_condition, namespace)",
        "pool": 'label_values(sglpool_pool_condition{namespace="$namespace"}, pool)',
    }
    chosen = [
        {"name": name, "label": name, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2, "sort": 1}
        for name, query in values.items()
    ]
    return [source, *chosen]


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    number, top = 1, 0
    for row in dashboard.rows:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        number, top = number + 1, top + 1
        for panel, (left, down) in zip(row.panels, places(row), strict=True):
            at = {"x": left, "y": top + down, "w": panel.width, "h": panel.height}
            yield _panel(panel, number, at)
            number += 1
        top += height_of(row)


def places(row: Row) -> list[tuple[int, int]]:
    """Column and line of each panel of a row, in reading order."""
    found, left, down, tallest = [], 0, 0, 0
    for panel in row.panels:
        if left + panel.width > COLUMNS:
            left, down, tallest = 0, down + tallest, 0
        found.append((left, down))
        left, tallest = left + panel.width, max(tallest, panel.height)
    return found


def height_of(row: Row) -> int:
    """Lines of the grid that a row takes, without its heading."""
    return max(down + panel.height for panel, (_, down) in zip(row.panels, places(row), strict=True))


def _panel(panel: Panel, number: int, place: Json) -> Json:
    defaults: Json = {"unit": _UNITS.get(panel.unit, panel.unit), "custom": {}}
    # The y axis of lines begins at 0; so do shares, which end at their top.
    if panel.kind == "timeseries":
        lines: Json = {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "axisSoftMin": 0}
        if panel.stacked:
            # Areas without an edge: a series that is 0 draws nothing over the others.
            lines |= {"fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "normal", "group": "A"}}
        defaults["custom"] = lines
    if panel.top is not None:
        defaults |= {"min": 0, "max": panel.top}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "range": panel.kind == "timeseries",
                "instant": panel.kind != "timeseries",
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "stat":
        # A word is the name of its series: its value is always 1.
        mode = "name" if panel.unit == "" else "value"
        return {"textMode": mode, "colorMode": "none", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return {}
