"""Alerts: Prometheus' own promtool says when each fires and when not, and each has a page for whoever is woken up."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from observability.cases import CASES, Case

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts/sglpool/rules/sglpool.yaml"
RUNBOOKS = ROOT / "docs/runbooks"
Json = dict[str, Any]

ALERTS: list[Json] = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
BY_NAME = {rule["alert"]: rule for rule in ALERTS}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here: `apt-get install prometheus` brings it")
    return found


def promtool_test(name: str, case: Case, series: Mapping[str, str | None], *, fires: bool) -> Json:
    """One test in promtool's words."""
    rule = BY_NAME[case.alert]
    expected = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    looked_at = {"eval_time": f"{case.minute}m", "alertname": case.alert, "exp_alerts": [expected] if fires else []}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items() if values is not None],
        "alert_rule_test": [looked_at],
    }


def looks_at(case: Case) -> list[Json]:
    """One in which it fires, and one for each that it keeps quiet in."""
    made = [promtool_test(f"{case.alert} fires", case, case.series, fires=True)]
    for why, changes in case.quiet.items():
        made.append(promtool_test(f"{case.alert}: {why}", case, {**case.series, **changes}, fires=False))
    return made


def run(promtool: str, folder: Path, tests: list[Json]) -> subprocess.CompletedProcess[str]:
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path = folder / "tests.json"
    path.write_text(json.dumps(content))  # JSON is YAML
    return subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.minute}")
def test_it_fires_when_it_should_and_only_then(promtool: str, tmp_path: Path, case: Case):
    done = run(promtool, tmp_path, looks_at(case))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_is_noticed(promtool: str, tmp_path: Path):
    case = CASES[0]
    assert run(promtool, tmp_path, [promtool_test("n", case, case.series, fires=False)]).returncode != 0


def test_every_alert_is_tested_and_has_a_page():
    assert {case.alert for case in CASES if case.quiet} == set(BY_NAME)
    pages = {Path(rule["annotations"]["runbook_url"]).name for rule in ALERTS}
    assert pages == {path.name for path in RUNBOOKS.glob("*.md")} - {"README.md"}
    for rule in ALERTS:
        page = (ROOT / rule["annotations"]["runbook_url"]).read_text()
        assert rule["alert"] in page.splitlines()[0], rule["alert"]
        for heading in ("## What it means", "## What to look at", "## What to do"):
            assert heading in page, (rule["alert"], heading)
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_promtool_takes_the_file(promtool: str):
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
