"""What the chart becomes for which values, and which values it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart_values import DIGEST, EVERYTHING
from support.helm import CHART, KUBERNETES_MINIMUM, Helm

Objects = dict[tuple[str, str], dict[str, Any]]


def render(helm: Helm, tmp_path: Path, values: dict[str, Any] | None = None) -> Objects:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values or {}))
    return {(o["kind"], o["metadata"]["name"]): o for o in helm.template("-f", str(file))}


def pod_of(objects: Objects) -> dict[str, Any]:
    template: dict[str, Any] = objects["Deployment", "sglpool"]["spec"]["template"]
    return template


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_lint_has_nothing_to_say(helm: Helm, tmp_path: Path, values: dict[str, Any]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))

    helm("lint", CHART, "--strict", "--kube-version", KUBERNETES_MINIMUM, "-f", file)


def test_by_default_it_installs_the_least(helm: Helm, tmp_path: Path) -> None:
    assert sorted(kind for kind, _ in render(helm, tmp_path)) == [
        *("ClusterRole", "ClusterRole", "ClusterRole", "ClusterRole"),  # operator, nodes, view, edit
        *("ClusterRoleBinding", "ClusterRoleBinding"),
        *("CustomResourceDefinition", "Deployment", "Pod", "Service", "ServiceAccount"),
    ]


def test_everything_lands_where_it_belongs(helm: Helm, tmp_path: Path) -> None:
    objects = render(helm, tmp_path, EVERYTHING)
    pod = pod_of(objects)
    (container,) = pod["spec"]["containers"]

    assert container["image"] == f"registry.example.com/sglpool@{DIGEST}"
    assert {e["name"]: e.get("value") for e in container["env"]} == {
        "POD_NAME": None,
        "HTTP_PROXY": "http://p:1",
        "HTTPS_PROXY": "http://p:2",
        "NO_PROXY": "$(KUBERNETES_SERVICE_HOST),example.com",
        "EXTRA": "1",
    }
    same = ("imagePullSecrets", "priorityClassName", "nodeSelector", "affinity", "tolerations")
    for field in (*same, "topologySpreadConstraints"):
        assert pod["spec"][field] == EVERYTHING[field], field
    assert pod["metadata"]["labels"].items() >= {"team": "inference", "scrape": "no"}.items()
    assert pod["metadata"]["annotations"]["note"] == "yes"
    assert {"--leader-elect", "--gpu-types=/etc/sglpool/gpu-types.yaml", "--log-level=debug"} <= set(container["args"])
    assert yaml.safe_load(objects["ConfigMap", "sglpool-gpu-types"]["data"]["gpu-types.yaml"]) == EVERYTHING["gpuTypes"]
    unlabelled = [key for key, o in objects.items() if o["metadata"].get("labels", {}).get("team") != "inference"]
    assert unlabelled == [("CustomResourceDefinition", "inferencepools.sglpool.io")]


def test_the_pods_labels_are_those_that_network_policies_of_pools_know(helm4: Helm, tmp_path: Path) -> None:
    from sglpool.api.names import OPERATOR_LABELS

    assert pod_of(render(helm4, tmp_path))["metadata"]["labels"].items() >= OPERATOR_LABELS.items()


def test_without_a_lease_the_old_operator_ends_before_the_new_one_starts(helm4: Helm, tmp_path: Path) -> None:
    def strategy(values: dict[str, Any]) -> str:
        return str(render(helm4, tmp_path, values)["Deployment", "sglpool"]["spec"]["strategy"]["type"])

    assert strategy({}) == "Recreate"
    assert strategy({"leaderElection": True}) == "RollingUpdate"


def test_a_changed_gpu_type_restarts_the_operator(helm4: Helm, tmp_path: Path) -> None:
    def mark(value: str) -> str:
        types = {"B200": {"node_label_values": [value]}}
        return str(pod_of(render(helm4, tmp_path, {"gpuTypes": types}))["metadata"]["annotations"])

    assert mark("a") != mark("b")


def test_the_right_to_nodes_restarts_the_operator_when_it_comes_or_goes(helm4: Helm, tmp_path: Path) -> None:
    """It asks at its start whether it may watch them."""

    def pod(nodes: bool | None) -> str:
        return str(pod_of(render(helm4, tmp_path, {"watchNamespaces": ["a"], "rbac": {"nodes": nodes}})))

    assert len({pod(None), pod(True), pod(False)}) == 3


def test_alerts_and_dashboards_come_through_as_they_are(helm: Helm, tmp_path: Path) -> None:
    objects = render(helm, tmp_path, EVERYTHING)
    files = [yaml.safe_load(file.read_text()) for file in sorted((CHART / "rules").glob("*.yaml"))]
    groups = objects["PrometheusRule", "sglpool"]["spec"]["groups"]

    assert files
    assert [g["name"] for g in groups] == [g["name"] for file in files for g in file["groups"]]
    for ours, theirs in zip(groups, (g for file in files for g in file["groups"]), strict=True):
        assert [(r.get("alert"), r["expr"]) for r in ours["rules"]] == [
            (r.get("alert"), r["expr"]) for r in theirs["rules"]
        ]
        for rule, theirs_rule in zip(ours["rules"], theirs["rules"], strict=True):
            theirs_url = theirs_rule.get("annotations", {}).get("runbook_url")
            if theirs_url:
                page = theirs_url.removeprefix("docs/runbooks/")
                assert rule["annotations"]["runbook_url"] == f"https://wiki.example.com/runbooks/{page}"
    shown = {name: o["data"] for (kind, name), o in objects.items() if "dashboard-" in name and kind == "ConfigMap"}
    texts = {file.name: file.read_text().rstrip() for file in (CHART / "dashboards").glob("*.json")}
    assert {key: text.rstrip() for data in shown.values() for key, text in data.items()} == texts


BAD_VALUES = {
    "a key that is not there": ({"imagee": {"tag": "x"}}, "imagee"),
    "one below": ({"image": {"tagg": "x"}}, "tagg"),
    "one of a list": ({"imagePullSecrets": [{"nam": "x"}]}, "imagePullSecrets"),
    "one of a GPU type": ({"gpuTypes": {"B200": {"node_labels": ["x"]}}}, "node_labels"),
    "one of monitoring": ({"monitoring": {"rules": {"on": True}}}, "on"),
    "a wrong type": ({"replicas": "two"}, "replicas"),
    "a word that means nothing": ({"operator": {"logLevel": "loud"}}, "logLevel"),
    "half a digest": ({"image": {"digest": "sha256:1"}}, "digest"),
    "a label that the chart needs itself": ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels"),
    "two without a Lease": ({"replicas": 2}, "leaderElection"),
    "no account at all": ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
}


@pytest.mark.parametrize(("values", "named"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_wrong_values_are_refused_by_name(helm: Helm, tmp_path: Path, values: dict[str, Any], named: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))

    done = helm.run("template", "sglpool", CHART, "--kube-version", KUBERNETES_MINIMUM, "-f", file)

    assert done.returncode != 0
    assert named in done.stderr


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = helm.run("template", "sglpool", CHART, "--kube-version", "1.31.0")

    assert done.returncode != 0
    assert "kubeVersion" in done.stderr


def test_every_value_is_in_the_schema_and_explained(helm4: Helm) -> None:
    """The schema allows exactly what values.yaml holds, so that a key cannot be forgotten in one of them."""
    import json

    def keys(values: Any, path: str = "") -> set[str]:
        if not isinstance(values, dict):
            return set()
        return {f"{path}{k}" for k in values} | {x for k, v in values.items() for x in keys(v, f"{path}{k}.")}

    def allowed(schema: dict[str, Any], path: str = "") -> set[str]:
        found = schema.get("properties", {})
        return {f"{path}{k}" for k in found} | {x for k, v in found.items() for x in allowed(v, f"{path}{k}.")}

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    # Kubernetes' own structures, of which the schema says nothing or more than there are defaults.
    foreign = ("resources.", "networkPolicy.prometheus.", "monitoring.dashboards.labels.")
    missing = {k for k in keys(values) if not k.startswith(foreign)} - allowed(schema)
    assert missing == set()
    assert {k for k in allowed(schema) if not k.startswith(foreign)} - keys(values) == {"global"}


def test_routers_run_the_image_of_the_operator(helm4: Helm) -> None:
    private = ("--set", "image.repository=example/sglpool", "--set", "image.digest=sha256:" + "a" * 64)
    (deployment,) = [o for o in helm4.template(*private) if o["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example/sglpool@sha256:" + "a" * 64
    assert f"--router-image={container['image']}" in container["args"]
