"""Dashboards and alerts on a real Prometheus that scrapes a real pool at work."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.observability.__main__ import DASHBOARDS, PAGE, main
from tools.observability.draw import page_of
from tools.observability.panels import Dashboard
from tools.observability.query import Place, Series, get, series_of

from observability.live.watched import Watched
from support.prometheus_process import PrometheusProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

AGENTS = 8
SERVING = 'envoy_http_conn_manager_prefix="serving"'
WORK_S = 40.0
"""Long enough for rates over half a minute."""


@pytest.fixture(scope="module")
def worked(watched: Watched, prometheus: PrometheusProcess) -> Place:
    """Where to look at the pool's figures of the last minute."""
    begin_s = time.time()
    with watched.busy(AGENTS):
        wait_until(
            lambda: time.time() - begin_s > WORK_S and watched.answers[200] > 100,
            timeout_s=120,
            describe=lambda: f"requests are answered: {watched.answers}",
        )
        end_s = time.time()
    assert set(watched.answers) == {200}, watched.answers
    variables = {"namespace": "default", "pool": "watched", "__rate_interval": "20s"}
    return Place(url=prometheus.url, begin_s=begin_s, end_s=end_s, step_s=1.0, variables=variables)


def figures(dashboard: Dashboard, place: Place) -> list[list[list[Series]]]:
    return [series_of(panel, place) for panel in dashboard.panels]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_every_expression_of_every_panel_has_figures(dashboard: Dashboard, worked: Place, tmp_path: Path):
    found = figures(dashboard, worked)
    page = page_of(dashboard, found)
    (Path(os.environ.get("SGLPOOL_PICTURES", tmp_path)) / f"{dashboard.uid}.html").write_text(page)
    empty = [
        (panel.title, query.expr)
        for panel, results in zip(dashboard.panels, found, strict=True)
        for query, series in zip(panel.queries, results, strict=True)
        if not any(each.points for each in series)
    ]
    assert empty == []
    nameless = [
        (panel.title, query.expr)
        for panel, results in zip(dashboard.panels, found, strict=True)
        for query, series in zip(panel.queries, results, strict=True)
        if "{{" in query.legend and "vector(0)" not in query.expr and not all(each.name.strip() for each in series)
    ]
    assert nameless == [], "a legend names a label that is not there"
    assert "no data" not in page


def test_dashboards_can_be_drawn_from_the_command_line(worked: Place, tmp_path: Path):
    where = ["--prometheus", worked.url, "--namespace", "default", "--pool", "watched"]
    main(["draw", *where, "--minutes", "2", "--out", str(tmp_path / "pages")])
    pages = {path.stem: path.read_text() for path in (tmp_path / "pages").iterdir()}
    assert pages.keys() == {dashboard.uid for dashboard in DASHBOARDS}
    for dashboard in DASHBOARDS:
        charts = [panel for panel in dashboard.panels if panel.kind == "timeseries"]
        assert pages[dashboard.uid].count("<svg") == len(charts)


def test_figures_are_those_of_the_work(watched: Watched, worked: Place):
    """Not only that there are figures: those that the client knows too are right."""
    pool = 'namespace="default",pool="watched"'
    asked = sum(watched.answers.values())

    def now(query: str) -> float:
        return float(get(worked.url, "/api/v1/query", query=query)["result"][0]["value"][1])

    answered = f'sum(envoy_http_downstream_rq_xx{{{pool},envoy_response_code_class="2",{SERVING}}})'
    wait_until(lambda: now(answered) == asked, timeout_s=20, describe=lambda: f"{asked} answers: {now(answered)}")
    # The engines' own warm-up is among theirs; they are asked a moment after Envoy.
    finished = f"sum(sglang:num_requests_total{{{pool}}})"
    wait_until(lambda: now(finished) >= asked, timeout_s=20, describe=lambda: f"{asked} finished: {now(finished)}")
    assert now(finished) <= asked + 40
    counts = [now(f"sum(sglpool_router_{kind}_tokens_total{{{pool}}})") for kind in ("cached", "prompt")]
    assert 0.5 < counts[0] / counts[1] < 1.0


def test_every_alert_can_be_evaluated_and_none_fires_over_a_pool_that_does_well(worked: Place):
    groups = get(worked.url, "/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_every_series_that_an_alert_asks_for_is_there(worked: Place):
    """Reasons, codes and missing rights apart, of which a pool that does well has none."""
    rules = [rule for group in get(worked.url, "/api/v1/rules")["groups"] for rule in group["rules"]]
    missing = []
    for rule in rules:
        for name, matchers in re.findall(r"\b((?:sglpool_|sglang:|envoy_)\w+)(\{[^}]*\})?(?![\w\"=])", rule["query"]):
            if name == "sglpool_missing_permissions" or re.fullmatch(
                r"envoy_(response|http_conn|cluster_name)\w*", name
            ):
                continue
            loose = re.sub(r'(reason|code)\s*(=~|!~|!=|=)\s*"[^"]*"', r'\1!=""', matchers)
            if not get(worked.url, "/api/v1/query", query=name + loose)["result"]:
                missing.append((rule["name"], name + loose))
    assert missing == []


def test_processes_export_what_the_page_of_metrics_lists(watched: Watched, worked: Place):
    del worked
    rows = dict(re.findall(r"^\| `([\w:]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    seen = {name: kind for text in exposed(watched) for name, kind in families(text)}
    assert {name: kind for name, kind in seen.items() if rows.get(name) != kind} == {}
    # What a pool that does well does not do; and an idle Envoy shows no counters of what never happened.
    unseen = {name for name in rows if name not in seen}
    assert {name for name in unseen if not name.startswith("envoy_")} <= {
        "sglang:num_aborted_requests_total",
        "sglang:num_retracted_requests_total",
        "sglpool_missing_permissions",
    }


def exposed(watched: Watched) -> Iterator[str]:
    places = [watched.operator_address]
    places += [f"{pod['status']['podIP']}:{port}" for pod in watched.routers() for port in (9000, 8001)]
    places += [f"{pod['status']['podIP']}:30000" for pod in watched.pool.pods().values()]
    for place in places:
        with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as answer:
            yield answer.read().decode()


def families(text: str) -> Iterator[tuple[str, str]]:
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        if not name.endswith("_created"):
            yield name, kind
