"""Pods in trouble: each trouble shows as a condition with a remedy, and heals when its cause is gone."""

from __future__ import annotations

import pytest

from support.kubectl import Kubectl
from support.pool_on_cluster import PoolMaker
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane


def test_a_broken_image(make_pool: PoolMaker) -> None:
    pool = make_pool(engine={"image": "example/does-not-exist:1"})
    message = pool.wait_for("Ready", reason="ImagePullFailed")["message"]
    assert "example/does-not-exist:1" in message
    assert "engine.image" in message
    assert pool.condition("Progressing")["reason"] == "ImagePullFailed"
    pool.apply(engine=None)
    pool.wait_ready()


def test_a_crash_loop(make_pool: PoolMaker) -> None:
    pool = make_pool(engine={"image": "example/crash-loop:1"})
    message = pool.wait_for("Ready", reason="CrashLoop")["message"]
    assert "kubectl logs p-b200-0 --previous" in message
    pool.apply(engine=None)
    pool.wait_ready()


def test_no_node_of_the_type(make_pool: PoolMaker) -> None:
    pool = make_pool(gpus=[{"type": "H200"}])
    message = pool.wait_for("Scheduled", reason="NoMatchingNodes")["message"]
    assert "H200" in message
    assert pool.condition("Ready")["reason"] == "NoMatchingNodes"
    pool.apply(gpus=[{"type": "B200"}])
    pool.wait_ready()


def test_nodes_are_full(make_pool: PoolMaker) -> None:
    pool = make_pool(tensorParallelSize=8, replicas=3, gpus=[{"type": "B300"}])
    message = pool.wait_for("Scheduled", reason="InsufficientGPU")["message"]
    assert "needs 8 free GPUs on one B300 node" in message
    wait_until(lambda: pool.get()["status"]["readyReplicas"] == 2, timeout_s=30, describe="two replicas are ready")
    pool.wait_for("Available", reason="MinimumReplicasAvailable")
    pool.apply(replicas=2)
    pool.wait_ready()


def test_pod_security_refuses_the_cache(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=baseline")
    pool = make_pool()
    message = pool.wait_for("Stalled", reason="PodSecurityRefused")["message"]
    assert "hostPath" in message
    assert pool.condition("Ready")["reason"] == "PodSecurityRefused"
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    pool.wait_ready(timeout_s=90)


def test_a_claim_as_cache_passes_baseline(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=baseline")
    source = {"persistentVolumeClaim": {"claimName": "models"}}
    pool = make_pool(model={"name": "gpt-oss-120b", "profile": "gpt-oss-120b", "source": source})
    wait_until(lambda: len(pool.pods()) == 1, timeout_s=30, describe="the pod is admitted")
    assert pool.condition("Stalled") == {}


def test_a_quota_refuses_the_pods(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "quota", "no-gpus", "--hard=requests.nvidia.com/gpu=0", "-n", namespace)
    # The quota's controller does not run here: its status is what admission reads.
    status = '{"status": {"hard": {"requests.nvidia.com/gpu": "0"}, "used": {"requests.nvidia.com/gpu": "0"}}}'
    kubectl("patch", "quota", "no-gpus", "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    pool = make_pool()
    message = pool.wait_for("Stalled", reason="QuotaExceeded")["message"]
    assert "no-gpus" in message


def test_trouble_is_said_once(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    pool = make_pool(engine={"image": "example/does-not-exist:1"})
    pool.wait_for("Ready", reason="ImagePullFailed")

    def warned() -> bool:
        events = kubectl.json("get", "events", "-n", namespace, "--field-selector=involvedObject.kind=InferencePool")
        return any(e["reason"] == "ImagePullFailed" and e["type"] == "Warning" for e in events["items"])

    wait_until(warned, timeout_s=20, describe="an Event says ImagePullFailed")
    # The pod goes on to ImagePullBackOff and stays there; the pool's status must not follow it.
    status = pool.get()["status"]

    def backed_off() -> bool:
        statuses = pool.pods()["p-b200-0"]["status"]["initContainerStatuses"]
        return any(s["state"].get("waiting", {}).get("reason") == "ImagePullBackOff" for s in statuses)

    wait_until(backed_off, timeout_s=30, describe="the pod is in ImagePullBackOff")
    assert pool.get()["status"] == status
