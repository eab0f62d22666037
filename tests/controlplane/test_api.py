"""The API as users meet it on a real server: defaults, scale, immutability, columns, explain."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglpool.api.crd import build_crd
from sglpool.api.pool import parse_pool
from sglpool.api.validate import load_pool
from sglpool.catalog import load_catalog
from sglpool.cli.planned import Planned
from sglpool.cli.yamltext import to_yaml
from sglpool.sandbox import binaries
from support import pools
from support.kubectl import Kubectl

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("crd")]

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]

# A pool that runs nothing whoever watches, and asks for a type that no operator can size.
PARKED: Json = {"gpus": [{"type": "NONE"}], "replicas": 0}
AUTOSCALED: Json = {"gpus": [{"type": "NONE"}], "replicas": None, "autoscaling": {"maxReplicas": 3}}


def create(kubectl: Kubectl, namespace: str, changes: Json, *, name: str = "kimi") -> Json:
    manifest = pools.manifest(changes, metadata={"name": name, "namespace": namespace})
    kubectl("create", "-f", "-", input=json.dumps(manifest))
    return manifest


@pytest.mark.parametrize(
    "changes",
    [
        {**PARKED, "kvCache": None, "speculative": None},
        {
            **PARKED,
            "router": {"replicas": 2},
            "engine": {"warmup": {"prompts": 1}},
            "rollout": {"gate": {"image": "i"}},
        },
        AUTOSCALED,
    ],
    ids=["minimal", "nested", "autoscaled"],
)
def test_the_server_fills_the_defaults_that_plan_assumes(changes: Json, kubectl: Kubectl, namespace: str) -> None:
    manifest = create(kubectl, namespace, changes)

    stored = parse_pool(kubectl.json("get", "sglpool", "kimi", "-n", namespace))
    assert stored.spec == load_pool(manifest).spec


def test_a_new_pool_is_pending_before_anybody_looks(kubectl: Kubectl, namespace: str) -> None:
    manifest = pools.manifest(PARKED, metadata={"namespace": namespace})
    created = json.loads(kubectl("create", "-o", "json", "-f", "-", input=json.dumps(manifest)))

    (condition,) = created["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "Unknown", "Pending")


def test_scale_sets_replicas_of_a_fixed_pool(kubectl: Kubectl, namespace: str) -> None:
    create(kubectl, namespace, PARKED)

    kubectl("scale", "sglpool/kimi", "--replicas=3", "-n", namespace)
    assert kubectl.json("get", "sglpool", "kimi", "-n", namespace)["spec"]["replicas"] == 3


def test_scale_of_an_autoscaled_pool_is_refused_with_the_remedy(kubectl: Kubectl, namespace: str) -> None:
    create(kubectl, namespace, AUTOSCALED)

    done = kubectl.run("scale", "sglpool/kimi", "--replicas=3", "-n", namespace)
    assert done.returncode != 0
    assert "the autoscaler decides the size. Change autoscaling.minReplicas and maxReplicas" in done.stderr
    assert "replicas" not in kubectl.json("get", "sglpool", "kimi", "-n", namespace)["spec"]


def test_the_served_name_cannot_change(kubectl: Kubectl, namespace: str) -> None:
    create(kubectl, namespace, PARKED)

    done = kubectl.run(
        "patch", "sglpool", "kimi", "-n", namespace, "--type=merge", "-p", '{"spec":{"model":{"name":"other"}}}'
    )
    assert done.returncode != 0
    assert "spec.model.name" in done.stderr
    assert "cannot change: create another pool" in done.stderr


def test_get_works_by_every_name_and_shows_the_columns(kubectl: Kubectl, namespace: str) -> None:
    create(kubectl, namespace, PARKED)

    for word in ("sglpool", "sglang", "inferencepools.sglpool.io", "inferencepool.sglpool.io"):
        assert "kimi" in kubectl("get", word, "-n", namespace), word
    wide = kubectl("get", "sglpool", "-n", namespace, "-o", "wide").splitlines()
    assert wide[0].split() == [
        "NAME",
        "MODEL",
        "READY",
        "RUNNING",
        "KV%",
        "GPUS",
        "SCALING",
        "STATUS",
        "AGE",
        "ENDPOINT",
        "MESSAGE",
    ]
    assert wide[1].split()[:2] == ["kimi", "kimi-k2.6"]


def test_a_newer_field_in_storage_is_pruned_without_strict_validation(kubectl: Kubectl, namespace: str) -> None:
    manifest = pools.manifest({**PARKED, "later": 1}, metadata={"namespace": namespace})

    kubectl("create", "--validate=ignore", "-f", "-", input=json.dumps(manifest))
    assert "later" not in kubectl.json("get", "sglpool", "kimi", "-n", namespace)["spec"]


def spec_paths(schema: Json, path: str) -> Iterator[tuple[str, str]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child["description"]
        yield from spec_paths(child, f"{path}.{name}")
        yield from spec_paths(child.get("items", {}), f"{path}.{name}")


def test_explain_says_the_sentence_of_every_field(kubectl: Kubectl) -> None:
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    sentences = dict(spec_paths(schema, "spec"))

    told = " ".join(
        kubectl("explain", "inferencepools.spec", "--recursive", "--api-version=sglpool.io/v1alpha1").split()
    )
    assert [path for path in sentences if path.rpartition(".")[2] not in told] == []
    # One call each for a sample of every depth; the schema that all answers come from is tested whole elsewhere.
    for path in ("spec.replicas", "spec.kvCache.hiCache.size", "spec.gpus.maxReplicas", "spec.engine.startupTimeout"):
        answer = " ".join(kubectl("explain", f"inferencepools.{path}", "--api-version=sglpool.io/v1alpha1").split())
        assert sentences[path] in answer


def test_the_manifests_of_plan_can_be_applied(kubectl: Kubectl, namespace: str) -> None:
    pool = load_pool(pools.manifest(metadata={"namespace": namespace}))
    planned = Planned.of(pool, load_catalog(), source="a file", in_namespace=True)

    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=to_yaml(planned.manifests()))


def test_the_chart_carries_the_crd_and_keeps_it(kubectl: Kubectl) -> None:
    helm = binaries.ensure(["helm"], say=lambda _: None)["helm"]

    def template(*settings: str) -> str:
        done = subprocess.run(
            [helm, "template", "sglpool", ROOT / "charts" / "sglpool", *settings],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    (crd,) = (m for m in yaml.safe_load_all(template()) if m and m["kind"] == "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Delete=false,Prune=false",
    }
    assert crd == build_crd()
    kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", input=to_yaml([crd]))
    assert "resource-policy" not in template("--set", "crds.keep=false")
    assert "CustomResourceDefinition" not in template("--set", "crds.install=false")
