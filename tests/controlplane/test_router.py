"""A pool's router on a real API server: accepted as rendered, admitted at `restricted`, its life under the operator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sglpool import render
from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.validate import load_pool
from sglpool.plan.children import expected_router_children, is_healthy
from support import pools
from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, PoolMaker
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]
MANAGED: pools.Json = {
    **pools.ROUTED["router"],
    "sessionStore": {"managed": {"memory": "1024Mi"}},
    "resources": {"requests": {"cpu": "1000m", "memory": "0.5Gi"}, "limits": {"cpu": 4}},
}


def rendered(namespace: str, case: str) -> list[Manifest]:
    """Children of the router with their hashes, and the ConfigMap."""
    if case == "everything":
        text = (ROOT / "manifests/samples/everything.yaml").read_text(encoding="utf-8")
        pool = replace(load_pool(yaml.safe_load(text)), namespace=namespace)
    else:
        pool = pools.pool({"router": MANAGED}, metadata={"namespace": namespace})
    sized = pools.size(pool)
    return [*expected_router_children(pool, sized), render.router_configmap(pool, sized)]


def apply(kubectl: Kubectl, manifests: list[Manifest]) -> None:
    options = ["--server-side", f"--field-manager={names.MANAGER_TEMPLATE}", "--force-conflicts", "--validate=strict"]
    kubectl("apply", *options, "-f", "-", input="\n---\n".join(map(json.dumps, manifests)))


@pytest.mark.parametrize("case", ["everything", "managed"])
def test_what_the_server_makes_of_it_counts_as_unchanged(kubectl: Kubectl, namespace: str, case: str) -> None:
    manifests = rendered(namespace, case)
    apply(kubectl, manifests)
    for manifest in manifests:
        metadata = manifest["metadata"]
        live = kubectl.json("get", manifest["kind"].lower(), metadata["name"], "-n", namespace)
        assert is_healthy(live, manifest), f"{manifest['kind']} {metadata['name']} would be applied again for ever"


@pytest.mark.parametrize("case", ["everything", "managed"])
def test_its_pods_are_admitted_at_the_restricted_level(kubectl: Kubectl, namespace: str, case: str) -> None:
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    manifests = rendered(namespace, case)
    apply(kubectl, [m for m in manifests if m["kind"] == "ServiceAccount"])
    deployments = [m for m in manifests if m["kind"] == "Deployment"]
    assert deployments
    for deployment in deployments:
        template = deployment["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        # The priority class of the sample is the user's to make.
        pod["spec"] = {key: value for key, value in template["spec"].items() if key != "priorityClassName"}
        pod["metadata"] = template["metadata"] | {"name": "one", "namespace": namespace}
        done = kubectl.run("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
        assert done.returncode == 0, done.stderr


def test_the_pickers_account_can_watch_pods_here_and_nothing_else(kubectl: Kubectl, namespace: str) -> None:
    apply(kubectl, rendered(namespace, "managed"))
    account = f"--as=system:serviceaccount:{namespace}:kimi-router"

    def can(verb: str, what: str, where: str = namespace) -> bool:
        return kubectl.run("auth", "can-i", verb, what, "-n", where, account).stdout.strip() == "yes"

    wait_until(lambda: can("watch", "pods"), timeout_s=20, describe="the role is in force")
    assert can("list", "pods")
    assert can("get", "pods")
    assert not can("delete", "pods")
    assert not can("patch", "pods")
    assert not can("list", "pods", "kube-system")
    assert not can("get", "secrets")


def router_of(pool: ClusterPool) -> Manifest:
    return pool.kubectl.json("get", "deployment", f"{pool.name}-router", "-n", pool.namespace)


def generations(pool: ClusterPool, kinds: str) -> dict[str, object]:
    """What tells a write from a change of status: the generation, else the version."""
    found = pool.kubectl.json("get", kinds, "-n", pool.namespace, "-l", f"sglpool.io/pool={pool.name}")["items"]
    return {
        f"{o['kind']}/{o['metadata']['name']}": o["metadata"].get("generation") or o["metadata"]["resourceVersion"]
        for o in found
    }


ALL = "deployments,services,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,configmaps"


def test_a_pool_is_ready_with_its_router_and_says_where(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    assert pool.condition("RouterReady")["reason"] == "RouterAvailable"
    assert pool.get()["status"]["endpoint"] == f"http://p-router.{namespace}.svc:8000/v1"
    assert router_of(pool)["status"]["readyReplicas"] == 1


def test_a_router_rolls_out_without_an_engine_noticing_and_its_old_settings_go(
    make_pool: PoolMaker, operator: OperatorProcess
) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    engines, before = pool.pods(), generations(pool, "configmaps")
    pool.apply(router={"bodyLimit": "1Mi", "replicas": 2})
    wait_until(
        lambda: router_of(pool)["status"].get("readyReplicas") == 2, timeout_s=60, describe="two routers are ready"
    )
    pool.wait_ready()
    assert pool.uids() == {n: p["metadata"]["uid"] for n, p in engines.items()}
    [old] = [name for name in before if "-router-" in name]

    def collected() -> bool:
        operator.stop()
        operator.start()
        return old not in generations(pool, "configmaps")

    wait_until(collected, timeout_s=60, describe="the old ConfigMap is collected", interval_s=1)


def test_nothing_is_written_while_nothing_changes(make_pool: PoolMaker, operator: OperatorProcess) -> None:
    pool = make_pool(replicas=1, router={"replicas": 2, "sessionStore": {"managed": {}}})
    pool.wait_ready()
    before = generations(pool, ALL)
    operator.stop()
    operator.start()
    pool.apply(load={"tokensPerRequest": 90_000})
    wait_until(
        lambda: pool.get()["status"]["observedGeneration"] == pool.get()["metadata"]["generation"],
        timeout_s=20,
        describe="the operator has looked again",
    )
    assert generations(pool, ALL) == before


def test_a_router_changed_or_deleted_by_hand_comes_back(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str, operator: OperatorProcess
) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    kubectl("delete", "deployment", "p-router", "-n", namespace)
    wait_until(
        lambda: kubectl.run("get", "deployment", "p-router", "-n", namespace).returncode == 0,
        timeout_s=30,
        describe="the Deployment is back at once: it is watched",
    )
    pool.wait_ready()
    kubectl("scale", "deployment", "p-router", "--replicas=0", "-n", namespace)
    kubectl("delete", "rolebinding", "p-router", "-n", namespace)
    operator.stop()
    operator.start()
    wait_until(lambda: router_of(pool)["spec"]["replicas"] == 1, timeout_s=30, describe="it has its replica again")
    wait_until(
        lambda: "RoleBinding/p-router" in generations(pool, ALL), timeout_s=30, describe="the RoleBinding is back"
    )
    pool.wait_ready()


def test_a_router_that_is_switched_off_leaves_nothing(
    make_pool: PoolMaker, namespace: str, operator: OperatorProcess
) -> None:
    pool = make_pool(replicas=1, router={"sessionStore": {"managed": {}}})
    pool.wait_ready()
    assert "Deployment/p-valkey" in generations(pool, ALL)
    pool.apply(router={"enabled": False})

    def gone() -> bool:
        return not [
            key for key in generations(pool, ALL) if not key.startswith("ConfigMap/")
            and names.is_router_child("p", *key.split("/"))
        ]  # fmt: skip

    wait_until(gone, timeout_s=30, describe="every object of the router is gone")
    pool.wait_ready()
    assert pool.condition("RouterReady") == {}
    assert pool.get()["status"]["endpoint"] == f"http://p-engine.{namespace}.svc:30000/v1"


def test_a_router_pod_that_cannot_start_is_named_while_the_old_router_serves(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    pool.apply(router={"resources": {"requests": {"cpu": 1000}}})
    message = pool.wait_for("Ready", reason="RouterStuck")["message"]
    assert "p-router-" in message
    assert "Insufficient cpu" in message
    assert pool.condition("RouterReady")["reason"] == "RouterAvailable"
    pool.apply(router=None)
    pool.wait_ready()
