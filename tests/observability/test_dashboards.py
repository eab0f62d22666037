"""Dashboards and the page of metrics: as their definitions say, complete, and about metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools.observability.__main__ import DASHBOARDS, FOLDER, PAGE, ROOT
from tools.observability.grafana import height_of, places, text_of
from tools.observability.metricspage import page
from tools.observability.panels import COLUMNS, Dashboard, Row

HINT = "run `python -m tools.observability write`"
NAME = re.compile(r"\b(?!envoy_(?:response|http_conn|cluster_name))(?:sglpool_|sglang:|envoy_|workqueue_|process_)\w+")


def documented() -> set[str]:
    return set(re.findall(r"^\| `([\w:]+)` \|", PAGE.read_text(), re.MULTILINE))


def used(text: str) -> set[str]:
    """Names of metrics in an expression, without what makes a histogram three series."""
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if name not in documented() else name for name in NAME.findall(text)
    }


def test_the_page_of_metrics_is_as_the_processes_say():
    assert PAGE.read_text() == page(), HINT


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_dashboard_of_the_chart_is_as_its_definition_says(dashboard: Dashboard):
    path = FOLDER / f"{dashboard.uid}.json"
    assert path.read_text() == text_of(dashboard), HINT
    assert {path.name for path in FOLDER.iterdir()} == {f"{each.uid}.json" for each in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_panels_say_what_they_show_of_metrics_that_exist(dashboard: Dashboard):
    for panel in dashboard.panels:
        assert panel.text.endswith("."), panel.title
        for query in panel.queries:
            assert used(query.expr) <= documented(), (panel.title, used(query.expr) - documented())
            assert used(query.expr), panel.title
    titles = [panel.title for panel in dashboard.panels]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_pools_dashboard_asks_about_that_pool_alone(dashboard: Dashboard):
    if not dashboard.of_pool:
        return
    for panel in dashboard.panels:
        if "all pools" in panel.title:
            continue
        for query in panel.queries:
            series = re.findall(rf"{NAME.pattern}(\{{?)", query.expr)
            assert all(series), (panel.title, query.expr)
            assert query.expr.count('namespace="$namespace",pool="$pool"') == len(series), (panel.title, query.expr)


@pytest.mark.parametrize("row", [row for each in DASHBOARDS for row in each.rows], ids=lambda row: row.title)
def test_panels_of_a_row_neither_overlap_nor_leave_the_grid(row: Row):
    taken: set[tuple[int, int]] = set()
    for panel, (left, down) in zip(row.panels, places(row), strict=True):
        cells = {(left + x, down + y) for x in range(panel.width) for y in range(panel.height)}
        assert not cells & taken, panel.title
        assert left + panel.width <= COLUMNS
        assert down + panel.height <= height_of(row)
        taken |= cells


def test_alerts_are_about_metrics_that_exist():
    text = (ROOT / "charts/sglpool/rules/sglpool.yaml").read_text()
    rules = re.sub(r"^\s*(summary|description|runbook_url|- name):.*$", "", text, flags=re.MULTILINE)
    assert used(rules) <= documented(), used(rules) - documented()


def test_files_fit_a_configmap():
    for path in Path(FOLDER).iterdir():
        assert len(path.read_bytes()) < 200_000
        json.loads(path.read_text())
