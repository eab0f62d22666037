"""Rendered manifests on a real API server: accepted as they are, owned as designed, scheduled where meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglpool import render
from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.api.validate import load_pool
from support import pools
from support.kubectl import Kubectl
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]
POOL_FILES = sorted([*(ROOT / "manifests/samples").glob("*.yaml"), *(ROOT / "tests/golden/pools").glob("*.yaml")])


def load(path: Path, namespace: str) -> Pool:
    return replace(load_pool(yaml.safe_load(path.read_text(encoding="utf-8"))), namespace=namespace)


def manifests(pool: Pool) -> Iterator[Manifest]:
    yield from render.shared_children(pool)
    for sized in pools.size(pool):
        yield render.launch_configmap(pool, sized)
        yield render.statefulset(pool, sized)


def apply(kubectl: Kubectl, manager: str, *objects: Manifest) -> None:
    options = ["--server-side", f"--field-manager={manager}", "--force-conflicts", "--validate=strict"]
    kubectl("apply", *options, "-f", "-", input="\n---\n".join(json.dumps(manifest) for manifest in objects))


def as_created(statefulset: Manifest) -> Manifest:
    return {**statefulset, "spec": {**statefulset["spec"], "replicas": 0}}


def written(stored: dict[str, Any]) -> list[dict[str, Any]]:
    """When each of our managers last changed something; a controller's status is not in it."""
    ours = {names.MANAGER_TEMPLATE, names.MANAGER_SCALE}
    return [entry for entry in stored["metadata"]["managedFields"] if entry["manager"] in ours]


def owned_fields(stored: dict[str, Any], manager: str) -> str:
    (entry,) = [entry for entry in stored["metadata"]["managedFields"] if entry["manager"] == manager]
    return json.dumps(entry["fieldsV1"])


def test_two_managers_share_a_statefulset(kubectl: Kubectl, namespace: str) -> None:
    pool = load(ROOT / "manifests/samples/kimi-k2.6-coder.yaml", namespace)
    template = render.statefulset(pool, pools.size(pool)[0])
    name = template["metadata"]["name"]

    def scale(replicas: int, partition: int) -> None:
        body = render.scale_manifest(name=name, namespace=namespace, replicas=replicas, partition=partition)
        apply(kubectl, names.MANAGER_SCALE, body)

    def stored() -> dict[str, Any]:
        return kubectl.json("get", "statefulset", name, "-n", namespace, "--show-managed-fields")

    apply(kubectl, names.MANAGER_TEMPLATE, as_created(template))
    scale(0, 0)
    apply(kubectl, names.MANAGER_TEMPLATE, template)
    scale(0, 3)
    first = stored()
    assert first["spec"]["replicas"] == 0
    assert first["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 3
    assert "f:replicas" not in owned_fields(first, names.MANAGER_TEMPLATE)
    assert "f:partition" not in owned_fields(first, names.MANAGER_TEMPLATE)
    assert "f:template" not in owned_fields(first, names.MANAGER_SCALE)

    apply(kubectl, names.MANAGER_TEMPLATE, template)
    scale(0, 3)
    assert written(stored()) == written(first)


@pytest.mark.parametrize("path", POOL_FILES, ids=lambda path: path.stem)
def test_every_manifest_is_accepted_strictly_and_applying_again_writes_nothing(
    kubectl: Kubectl, namespace: str, path: Path
) -> None:
    pool = load(path, namespace)
    objects = [as_created(m) if m["kind"] == "StatefulSet" else m for m in manifests(pool)]

    def versions() -> set[str]:
        kinds = "serviceaccounts,services,poddisruptionbudgets,configmaps,statefulsets"
        listed = kubectl.json("get", kinds, "-n", namespace, "-l", f"{names.LABEL_POOL}={pool.name}")["items"]
        assert len(listed) == len(objects)
        # Status moves by itself; where there is one, the generation tells writes to the spec.
        return {
            f"{o['kind']}/{o['metadata']['name']}/{o['metadata'].get('generation') or o['metadata']['resourceVersion']}"
            for o in listed
        }

    apply(kubectl, names.MANAGER_TEMPLATE, *objects)
    first = versions()
    apply(kubectl, names.MANAGER_TEMPLATE, *objects)
    assert versions() == first


def test_two_replicas_of_four_gpus_share_one_node_of_their_type(kubectl: Kubectl, namespace: str) -> None:
    pool = load(ROOT / "manifests/samples/kimi-k2.6-coder.yaml", namespace)
    sized = pools.size(pool)[0]
    template = render.statefulset(pool, sized)
    apply(kubectl, names.MANAGER_TEMPLATE, *render.shared_children(pool), render.launch_configmap(pool, sized))
    apply(kubectl, names.MANAGER_TEMPLATE, {**template, "spec": {**template["spec"], "replicas": 2}})

    def nodes() -> list[str]:
        selector = names.pool_selector(pool.name)
        listed = kubectl.json("get", "pods", "-n", namespace, "-l", selector)["items"]
        return [pod["spec"]["nodeName"] for pod in listed if "nodeName" in pod["spec"]]

    wait_until(lambda: len(nodes()) == 2, timeout_s=60, describe="both replicas have a node")
    first, second = nodes()
    assert first == second
    labels = kubectl.json("get", "node", first)["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-B200"


@pytest.mark.parametrize(
    ("pool_file", "admitted"),
    [
        ("tests/golden/pools/draft-on-claim.yaml", True),
        ("tests/golden/pools/emptydir-cache.yaml", True),
        ("manifests/samples/weights-in-image.yaml", True),
        ("manifests/samples/gpt-oss-120b.yaml", False),
    ],
)
def test_only_a_cache_on_the_node_needs_more_than_baseline(
    kubectl: Kubectl, namespace: str, pool_file: str, admitted: bool
) -> None:
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=baseline")
    pool = load(ROOT / pool_file, namespace)
    template = render.statefulset(pool, pools.size(pool)[0])["spec"]["template"]
    account = template["spec"]["serviceAccountName"]
    kubectl("create", "serviceaccount", account, "-n", namespace)
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = template["metadata"] | {"name": "replica", "namespace": namespace}
    done = kubectl.run("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
    assert (done.returncode == 0) is admitted, done.stderr
    if not admitted:
        assert "hostPath" in done.stderr
