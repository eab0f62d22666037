"""The product does not know the sandbox: it renders the same objects everywhere, and its code never mentions it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import pytest

from sandbox.cluster.conftest import AgentCluster
from sglpool.api.names import ANNOTATION_RENDER_HASH
from sglpool.sandbox.cluster import Sandbox
from support.kubectl import Kubectl
from support.pool_on_cluster import COMMIT, ClusterPool, small_pool
from support.waiting import wait_until

Json = dict[str, Any]

# The whole product, and what a part may say nevertheless.
PARTS = {
    **dict.fromkeys(("api", "catalog", "sizing", "scaling", "routing", "render", "plan"), ""),
    **dict.fromkeys(("kube", "signals", "controller", "picker"), ""),
    "cli": r"\bsandbox\b|SANDBOX|simulated engines",
}
# Not "simulated" alone: policies have a simulator of their own.
FORBIDDEN = re.compile(r"sandbox|enginemodel|nodeagent|simulated (engine|sglang|gpu|node|pod)", re.IGNORECASE)
# What the API server and the controllers write, which differs from one object to the next.
BOOKKEEPING = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")
WRITTEN_BY_SERVER = ("clusterIP", "clusterIPs", "healthCheckNodePort", "nodePort")


def texts(folder: Traversable) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from texts(entry)
        elif entry.is_file() and not entry.name.endswith((".pyc", ".so")):
            yield str(entry), entry.read_text(encoding="utf-8")


@pytest.mark.parametrize("part", PARTS)
def test_the_product_does_not_mention_the_sandbox(part: str) -> None:
    folder = resources.files("sglpool") / part
    assert folder.is_dir()
    allowed = re.compile(PARTS[part] or r"(?!)")
    found = [
        f"{name}: {line.strip()}"
        for name, text in texts(folder)
        for line in text.splitlines()
        if FORBIDDEN.search(allowed.sub("", line))
    ]
    assert found == []


@pytest.fixture(scope="module")
def fake_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """The same control plane and operator, but its pods are fake and nothing of the node agent is there."""
    sandbox = Sandbox(tmp_path_factory.mktemp("fake") / "sandbox")
    sandbox.up({"B200": 2}, operator=True)
    yield Kubectl(binary=sandbox.kubectl, kubeconfig=sandbox.kubeconfig)
    sandbox.down()


def rendered(kubectl: Kubectl, namespace: str, pool: Json) -> dict[str, Json]:
    """Everything that becomes of a pool, by kind and name, without what is different for every object."""
    made = ClusterPool(kubectl, namespace, pool)
    made.apply()
    wait_until(made.pods, timeout_s=40, describe=lambda: f"the pool has pods: {made.get().get('status')}")
    wait_until(lambda: made.condition("Reconciling"), timeout_s=20, describe="everything is rendered")
    kinds = (
        "statefulsets,deployments,services,serviceaccounts,poddisruptionbudgets,configmaps,controllerrevisions,"
        "roles,rolebindings,networkpolicies,secrets"
    )
    items = kubectl.json("get", kinds, "-n", namespace, "-l", f"sglpool.io/pool={made.name}")["items"]
    found = [comparable(item, uid=made.get()["metadata"]["uid"]) for item in items]
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in found}


def comparable(item: Json, *, uid: str) -> Json:
    metadata = {key: value for key, value in item["metadata"].items() if key not in BOOKKEEPING}
    for owner in metadata.get("ownerReferences", []):
        del owner["uid"]
    # It covers the owner's uid; what else it covers is compared itself.
    metadata.get("annotations", {}).pop(ANNOTATION_RENDER_HASH, None)
    content = {key: value for key, value in item.items() if key not in ("metadata", "status")}
    if item["kind"] == "Service":
        content["spec"] = {key: value for key, value in content["spec"].items() if key not in WRITTEN_BY_SERVER}
    text = json.dumps({"metadata": metadata, **content}).replace(uid, "UID")
    # A router knows its pool's uid, and its settings are named after their content.
    found: Json = json.loads(re.sub(r"(-router-)[0-9a-f]{10}\b", r"\1HASH", text))
    return found


@pytest.mark.controlplane
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {
            "replicas": 2,
            "tensorParallelSize": 2,
            "kvCache": {"dtype": "bf16", "hiCache": {"size": "200G"}},
            "engine": {"extraArgs": ["--log-level=debug"], "maxRunningRequests": 7},
            "template": {"labels": {"team": "a"}, "nodeSelector": {"kubernetes.io/arch": "amd64"}},
        },
    ],
    ids=["small", "rich"],
)
def test_objects_are_the_same_with_and_without_real_processes(
    cluster: AgentCluster, namespace: str, fake_cluster: Kubectl, spec: Json
) -> None:
    pool = small_pool("same", **spec)
    pool["spec"]["model"]["source"]["huggingFace"]["revision"] = COMMIT
    # By the same name, as some objects mention it.
    fake_cluster("create", "namespace", namespace)
    with_processes = rendered(cluster.kubectl, namespace, pool)
    with_fakes = rendered(fake_cluster, namespace, pool)
    assert {"StatefulSet/same-b200"} <= set(with_processes)
    assert any(name.startswith("ConfigMap/") for name in with_processes)
    assert sorted(with_processes) == sorted(with_fakes)
    for name, found in with_processes.items():
        assert json.dumps(found, sort_keys=True, indent=1) == json.dumps(with_fakes[name], sort_keys=True, indent=1)
