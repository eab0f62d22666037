"""Argo CD, Flux and kubectl on real objects: no drift, health in every state, nothing pruned that is not theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.gitops import GitOps
from support.kubectl import Kubectl
from support.pool_on_cluster import ClusterPool, PoolMaker, small_pool
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
Json = dict[str, Any]
TRACKING = {"app.kubernetes.io/instance": "team-pools"}
TRACKING_ID = {"argocd.argoproj.io/tracking-id": "team-pools:sglpool.io/InferencePool:n/p"}
MANAGER = "--field-manager=argocd-controller"
AUTOSCALED = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}


def differences(wanted: object, live: object, path: str = "") -> list[str]:
    """Fields of a manifest that the live object has otherwise: the plain comparison of a GitOps tool."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return [d for key, value in wanted.items() for d in differences(value, live.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        return [d for i, (a, b) in enumerate(zip(wanted, live, strict=True)) for d in differences(a, b, f"{path}[{i}]")]
    return [] if wanted == live else [f"{path}: {wanted!r} is {live!r}"]


def test_there_is_no_drift_however_a_pool_was_applied(kubectl: Kubectl, namespace: str, make_pool: PoolMaker) -> None:
    """Also while the autoscaler works: it writes status and StatefulSets, and Git has neither."""
    by_client = make_pool("client", **AUTOSCALED)
    by_server = ClusterPool(kubectl, namespace, small_pool("server", **AUTOSCALED))
    apply = ("-n", namespace, "-f", "-")
    server = ("--server-side", MANAGER)
    kubectl("apply", *server, *apply, input=json.dumps(by_server.manifest))
    for pool in (by_client, by_server):
        wait_until(lambda p=pool: len(p.pods()) == 2, timeout_s=60, describe="the autoscaler's first size")
        pool.wait_for("ScalingActive", reason="MetricsUnavailable")
        # A hand at its bounds: the size changes, and the status and the StatefulSet with it.
        pool.manifest["spec"]["autoscaling"] = {"minReplicas": 3, "maxReplicas": 4}
    by_client.apply()
    kubectl("apply", *server, *apply, input=json.dumps(by_server.manifest))
    for pool in (by_client, by_server):
        wait_until(lambda p=pool: p.statefulset()["spec"]["replicas"] == 3, timeout_s=60, describe="it grows")
        wait_until(
            lambda p=pool: p.get()["status"]["autoscaling"]["desired"] == 3, timeout_s=60, describe="and says so"
        )

    text = json.dumps(by_client.manifest)
    assert kubectl.run("diff", *apply, input=text).returncode == 0, "client-side, three ways"
    assert kubectl.run("diff", *server, "--force-conflicts", *apply, input=text).returncode == 0, "server-side"
    assert kubectl.run("diff", *server, *apply, input=json.dumps(by_server.manifest)).returncode == 0
    for pool in (by_client, by_server):
        live = pool.get()
        assert not differences(pool.manifest, live), "field by field"
        assert live["metadata"]["generation"] == 2, "nobody but its user has written the spec"


def test_marks_of_an_application_stay_on_the_pool(kubectl: Kubectl, namespace: str, make_pool: PoolMaker) -> None:
    """Children that carried them would look like leftovers of the application, and be pruned."""
    manifest = small_pool("p", replicas=1)
    manifest["metadata"] |= {"labels": TRACKING, "annotations": TRACKING_ID}
    pool = ClusterPool(kubectl, namespace, manifest)
    pool.apply()
    wait_until(pool.pods, timeout_s=60, describe="the pool has a replica")
    kinds = "statefulsets,deployments,services,configmaps,serviceaccounts,roles,rolebindings,pdb,networkpolicies,pods"
    children = kubectl.json("get", kinds, "-n", namespace, "-l", "sglpool.io/pool=p")["items"]
    assert len(children) > 8
    for child in children:
        marks = child["metadata"].get("labels", {}) | child["metadata"].get("annotations", {})
        assert not marks.keys() & {*TRACKING, *TRACKING_ID}, child["metadata"]["name"]

    other = json.dumps(small_pool("q", replicas=0) | {"metadata": {"name": "q", "labels": TRACKING}})
    prune = (
        "--prune",
        "-l",
        "app.kubernetes.io/instance=team-pools",
        "--prune-allowlist=sglpool.io/v1alpha1/InferencePool",
    )
    kubectl("apply", "-n", namespace, *prune, "-f", "-", input=other)
    gone = ("get", kinds, "-n", namespace, "-l", "sglpool.io/pool=p")
    wait_until(
        lambda: not kubectl.json(*gone)["items"],
        timeout_s=90,
        describe=lambda: f"pruned with the pool: {[c['metadata']['name'] for c in kubectl.json(*gone)['items']]}",
    )


class States:
    """What GitOps tools say of one pool as it lives."""

    def __init__(self, gitops: GitOps, pool: ClusterPool) -> None:
        self._gitops, self.pool = gitops, pool

    def expect(self, health: str, kstatus: str, *, timeout_s: float = 90) -> str:
        """Wait until both say so; return Argo CD's message."""

        def told() -> tuple[str, str, str]:
            live = self.pool.get()
            return (*self._gitops.health(live), self._gitops.kstatus(live))

        def holds() -> str | None:
            status, message, overall = told()
            return message if (status, overall) == (health, kstatus) else None

        found = wait_until(holds, timeout_s=timeout_s, describe=lambda: f"{health} and {kstatus}; it is {told()}")
        assert found is not None
        return found


def test_health_of_a_living_pool(gitops: GitOps, make_pool: PoolMaker) -> None:
    pool = make_pool(router={"enabled": False})
    states = States(gitops, pool)
    states.expect("Healthy", "Current")

    pool.apply(replicas=0)
    states.expect("Healthy", "Current")
    assert pool.condition("Ready")["reason"] == "Parked"

    pool.apply(replicas=1, model={**pool.manifest["spec"]["model"], "contextLength": 1_000_000})
    message = states.expect("Degraded", "Failed")
    assert "contextLength" in message or "context" in message

    pool.apply(model={k: v for k, v in pool.manifest["spec"]["model"].items() if k != "contextLength"})
    states.expect("Healthy", "Current")

    pool.kubectl("annotate", "sglpool", pool.name, "-n", pool.namespace, "sglpool.io/rollout=pause")
    pool.apply(engine={"maxQueuedRequests": 99})
    states.expect("Suspended", "InProgress")
    resumed = gitops.act("resume", pool.get())
    assert "sglpool.io/rollout" not in resumed["metadata"].get("annotations", {})
    pool.kubectl("annotate", "sglpool", pool.name, "-n", pool.namespace, "sglpool.io/rollout-")
    states.expect("Healthy", "Current")

    nowhere = make_pool("nowhere", template={"nodeSelector": {"kind": "unknown"}})
    nowhere.wait_for("Ready", reason="NoMatchingNodes")
    assert "node" in States(gitops, nowhere).expect("Progressing", "InProgress")
