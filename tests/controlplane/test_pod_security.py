"""Which Pod Security level each pod fits, on a real API server; what engines need beyond it stands in the docs."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglpool import render
from sglpool.api.validate import load_pool
from support import pools
from support.helm import Helm, helm_binary
from support.kubectl import Kubectl

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]
Pod = dict[str, Any]


@pytest.fixture(scope="module")
def restricted(kubectl: Kubectl) -> Iterator[str]:
    """A namespace that enforces the level `restricted`; nothing is stored in it."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def refusal(kubectl: Kubectl, namespace: str, pod: Pod) -> str:
    """The API server's words about a pod, empty if it takes it."""
    account = pod["spec"].get("serviceAccountName", "default")
    kubectl.run("create", "serviceaccount", account, "-n", namespace)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {key: value for key, value in pod["spec"].items() if key != "priorityClassName"},
    }
    done = kubectl.run("create", "--dry-run=server", "-f", "-", input=json.dumps(manifest))
    return "" if done.returncode == 0 else done.stderr


def chart_pods() -> dict[str, Pod]:
    objects = Helm(helm_binary(4)).template("--set", "gpuTypes.B200.node_label_key=x")
    pods = {"helm test": next(o for o in objects if o["kind"] == "Pod")}
    return pods | {"operator": next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]}


@pytest.mark.parametrize("whose", ["operator", "helm test"])
def test_the_charts_pods_fit_restricted(kubectl: Kubectl, restricted: str, whose: str) -> None:
    assert refusal(kubectl, restricted, chart_pods()[whose]) == ""


@pytest.mark.parametrize("path", ["manifests/samples/everything.yaml", "manifests/samples/kimi-k2.6-autoscaled.yaml"])
def test_routers_and_their_store_fit_restricted(kubectl: Kubectl, restricted: str, path: str) -> None:
    pool = replace(load_pool(yaml.safe_load((ROOT / path).read_text())), namespace=restricted)
    deployments = [o for o in render.router_children(pool, pools.size(pool)) if o["kind"] == "Deployment"]
    assert deployments
    for deployment in deployments:
        assert refusal(kubectl, restricted, deployment["spec"]["template"]) == "", deployment["metadata"]["name"]


def test_what_engines_need_beyond_restricted_is_documented_field_by_field(kubectl: Kubectl, restricted: str) -> None:
    """Exactly what the API server objects to, no more and no less."""

    def violations(path: str) -> set[str]:
        pool = replace(load_pool(yaml.safe_load((ROOT / path).read_text())), namespace=restricted)
        words = refusal(kubectl, restricted, render.statefulset(pool, pools.size(pool)[0])["spec"]["template"])
        # `violates PodSecurity "restricted:latest": what (which containers must set what), what (...)`
        listed = words.partition('PodSecurity "restricted:latest": ')[2]
        return {re.sub(r" != .*", "", what.strip()) for what in re.findall(r"(?:^|, )([\w ./!=]+?) \(", listed)}

    everywhere = violations("tests/golden/pools/draft-on-claim.yaml")
    on_nodes = violations("manifests/samples/gpt-oss-120b.yaml")
    page = (ROOT / "docs/permissions.md").read_text().partition("## Pod Security")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))
    assert everywhere | on_nodes == documented
    assert on_nodes - everywhere == {"restricted volume types"}


def test_an_engine_with_a_user_of_its_own_and_a_claim_fits_restricted(kubectl: Kubectl, restricted: str) -> None:
    manifest = yaml.safe_load((ROOT / "tests/golden/pools/draft-on-claim.yaml").read_text())
    manifest["spec"].setdefault("template", {})["securityContext"] = {"runAsUser": 1000, "runAsNonRoot": True}
    pool = replace(load_pool(manifest), namespace=restricted)
    assert refusal(kubectl, restricted, render.statefulset(pool, pools.size(pool)[0])["spec"]["template"]) == ""
