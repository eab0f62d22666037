"""What a security reviewer looks for in the chart's roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart_values import EVERYTHING
from support.helm import Helm

SOME = {**EVERYTHING, "watchNamespaces": ["team-a", "team-b"]}
VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}


def roles(helm: Helm, tmp_path: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return [o for o in helm.template("-f", str(file)) if o["kind"] in ("Role", "ClusterRole")]


@pytest.mark.parametrize("values", [{}, EVERYTHING, SOME], ids=["defaults", "everything", "some namespaces"])
def test_no_wildcard_no_escalation_and_no_secret_but_those_that_are_named(
    helm4: Helm, tmp_path: Path, values: dict[str, Any]
) -> None:
    rules = [rule for role in roles(helm4, tmp_path, values) for rule in role["rules"]]
    assert rules
    for rule in rules:
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert "*" not in words
        assert "nonResourceURLs" not in rule
        # Neither escalate, bind, impersonate nor deletecollection.
        assert set(rule["verbs"]) <= VERBS, rule
        assert not {"pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token"} & words
        if "secrets" in rule["resources"]:
            assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["prometheus-token"])


def test_only_nodes_belong_to_no_namespace(helm4: Helm, tmp_path: Path) -> None:
    """With all namespaces served, the operator's rules in them can only be a ClusterRole; all others are Roles."""

    def cluster_wide(values: dict[str, Any]) -> set[str]:
        return {r["metadata"]["name"] for r in roles(helm4, tmp_path, values) if r["kind"] == "ClusterRole"}

    for_people = {"sglpool-view", "sglpool-edit"}
    assert cluster_wide(EVERYTHING) - for_people == {"sglpool", "sglpool-nodes"}
    assert cluster_wide(SOME) == set()
    assert cluster_wide(SOME | {"rbac": {"nodes": True, "aggregate": True}}) == for_people | {"sglpool-nodes"}
    assert cluster_wide({"rbac": {"nodes": False}}) - for_people == {"sglpool"}
    assert roles(helm4, tmp_path, {"rbac": {"create": False}}) == []


def test_people_get_no_more_than_pools(helm4: Helm, tmp_path: Path) -> None:
    for role in roles(helm4, tmp_path, {}):
        aggregated = [label for label in role["metadata"]["labels"] if "aggregate-to" in label]
        if aggregated:
            assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"sglpool.io"}
