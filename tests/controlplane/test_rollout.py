"""Roll-outs by partition on the real StatefulSet controller: what moves, what must not, what heals."""

from __future__ import annotations

import json

import pytest

from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, NodeMaker, PoolMaker, is_ready
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

BROKEN = {"image": "example/does-not-exist:1"}


def ready_count(pool: ClusterPool) -> int:
    return sum(is_ready(pod) for pod in pool.pods().values())


def test_a_change_replaces_one_replica_after_another(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=3)
    pool.wait_ready()
    before = pool.uids()
    least = 3
    pool.apply(engine={"maxQueuedRequests": 99})

    def done() -> bool:
        nonlocal least
        least = min(least, ready_count(pool))
        replaced = not {*pool.uids().values()} & {*before.values()}
        return replaced and pool.condition("Ready").get("reason") == "AllReplicasReady"

    wait_until(done, timeout_s=90, describe="every replica is replaced")
    assert least >= 2
    assert len(set(pool.revisions().values())) == 1
    pool.wait_ready()
    assert pool.statefulset()["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 0


def test_max_unavailable_two(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=4, rollout={"maxUnavailable": 2})
    pool.wait_ready()
    before = pool.uids()
    pool.apply(engine={"maxQueuedRequests": 99})
    least = 4

    def replaced() -> bool:
        nonlocal least
        least = min(least, ready_count(pool))
        return not set(pool.uids().values()) & set(before.values())

    wait_until(replaced, timeout_s=90, describe="all are replaced")
    pool.wait_ready()
    assert least == 2, "two at a time, and never more"


def test_three_at_a_time_are_of_three_nodes(
    make_pool: PoolMaker, add_nodes: NodeMaker, operator: OperatorProcess
) -> None:
    """Neighbours by ordinal share a node, so this cannot go from the highest ordinal down."""
    selector = add_nodes("b200-240", "b200-241", "b200-242")
    template = {**selector, "annotations": {"sandbox.sglpool.io/load-delay": "3s"}}
    pool = make_pool(replicas=6, tensorParallelSize=4, template=template, rollout={"maxUnavailable": 3})
    pool.wait_ready()
    before, homes = pool.uids(), {name: pod["spec"]["nodeName"] for name, pod in pool.pods().items()}
    pool.apply(engine={"maxQueuedRequests": 99})
    together: set[frozenset[str]] = set()

    def look() -> bool:
        pods = pool.pods()
        together.add(frozenset(before.keys() - {name for name, pod in pods.items() if is_ready(pod)}))
        return not {pod["metadata"]["uid"] for pod in pods.values()} & {*before.values()}

    wait_until(lambda: look() or len({*map(len, together)} & {2, 3}) > 0, timeout_s=60, describe="it goes on with more")
    operator.kill()
    operator.start()
    wait_until(look, timeout_s=90, describe=lambda: f"all are replaced; {pool.get()['status']}")
    pool.wait_ready()
    assert max(map(len, together)) == 3, "as many as may be away, and never more"
    for away in together:
        first = [homes[name] for name in away if len(away) == 3]
        assert len({*first}) == len(first), f"{away} were away together"
    strategy, status = pool.statefulset()["spec"]["updateStrategy"], pool.statefulset()["status"]
    assert (strategy["type"], strategy["rollingUpdate"]["partition"]) == ("RollingUpdate", 0)
    assert status["currentRevision"] == status["updateRevision"]


def test_a_broken_image_harms_one_replica_and_reverting_heals(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=3)
    pool.wait_ready()
    before = pool.uids()
    pool.apply(engine=BROKEN)
    pool.wait_for("Ready", reason="ImagePullFailed")
    assert ready_count(pool) == 2
    assert {n: uid for n, uid in pool.uids().items() if n != "p-b200-2"} == {
        n: uid for n, uid in before.items() if n != "p-b200-2"
    }
    pool.apply(engine=None)
    pool.wait_ready()
    after = pool.uids()
    assert after["p-b200-0"] == before["p-b200-0"]
    assert after["p-b200-1"] == before["p-b200-1"]


def test_a_second_change_over_a_broken_one(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=2)
    pool.wait_ready()
    pool.apply(engine=BROKEN)
    pool.wait_for("Ready", reason="ImagePullFailed")
    pool.apply(engine={"maxQueuedRequests": 99})
    pool.wait_ready()
    assert len(set(pool.revisions().values())) == 1


def test_a_first_image_that_never_worked_is_replaced_at_once(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=3, engine=BROKEN)
    pool.wait_for("Ready", reason="ImagePullFailed")
    pool.apply(engine=None)
    pool.wait_ready()


def test_a_pending_ordinal_holds_the_roll_out_until_replicas_are_lowered(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=3, tensorParallelSize=8, gpus=[{"type": "B300"}])
    pool.wait_for("Scheduled", reason="InsufficientGPU")
    wait_until(lambda: ready_count(pool) == 2, timeout_s=30, describe="two replicas fit")
    before = pool.uids()
    pool.apply(engine={"maxQueuedRequests": 99})
    pool.wait_for("Scheduled", reason="InsufficientGPU")
    assert pool.uids()["p-b300-0"] == before["p-b300-0"]
    pool.apply(replicas=2)
    pool.wait_ready(timeout_s=90)
    assert len(set(pool.revisions().values())) == 1
    assert pool.uids()["p-b300-0"] != before["p-b300-0"]


def test_a_pod_below_the_partition_returns_on_the_old_revision(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str
) -> None:
    pool = make_pool(replicas=3)
    pool.wait_ready()
    old = pool.revisions()["p-b200-0"]
    pool.apply(engine=BROKEN)
    pool.wait_for("Ready", reason="ImagePullFailed")
    uid = pool.uids()["p-b200-0"]
    kubectl("delete", "pod", "p-b200-0", "-n", namespace)
    wait_until(
        lambda: pool.uids().get("p-b200-0", uid) != uid and is_ready(pool.pods()["p-b200-0"]),
        timeout_s=30,
        describe="the pod is back and ready",
    )
    assert pool.revisions()["p-b200-0"] == old


def test_a_node_lost_in_mid_roll_out(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    pool = make_pool(replicas=3)
    pool.wait_ready()
    pool.apply(engine={"maxQueuedRequests": 99}, template={"annotations": {"sandbox.sglpool.io/load-delay": "4s"}})
    pool.wait_for("Ready", reason="RollingOut")
    # What losing a node does to a pod, without taking a node from the other tests.
    kubectl("delete", "pod", "p-b200-0", "-n", namespace, "--grace-period=0", "--force")
    pool.wait_ready(timeout_s=120)
    assert len(set(pool.revisions().values())) == 1


def test_the_operator_dies_in_mid_roll_out(make_pool: PoolMaker, operator: OperatorProcess) -> None:
    pool = make_pool(replicas=3)
    pool.wait_ready()
    pool.apply(engine={"maxQueuedRequests": 99})
    pool.wait_for("Ready", reason="RollingOut")
    operator.kill()
    operator.start()
    pool.wait_ready(timeout_s=90)
    assert len(set(pool.revisions().values())) == 1


def test_asking_for_the_latest_rendering(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    """A template rendered by another version stays until the user asks."""
    pool = make_pool(replicas=1)
    pool.wait_ready()
    before = pool.uids()
    annotate = ("annotate", "statefulset", "p-b200", "-n", namespace, "--overwrite")
    kubectl(*annotate, "sglpool.io/render-hash=0000000000")
    pool.apply(load={"tokensPerRequest": 90_000})
    pool.wait_ready()
    assert pool.uids() == before
    assert pool.statefulset()["metadata"]["annotations"]["sglpool.io/render-hash"] == "0000000000"
    kubectl("annotate", "sglpool", "p", "-n", namespace, "sglpool.io/render=latest")

    def rendered() -> bool:
        return bool(pool.statefulset()["metadata"]["annotations"]["sglpool.io/render-hash"] != "0000000000")

    wait_until(rendered, timeout_s=60, describe="the template is rendered anew")
    pool.wait_ready()


def foreign_statefulset(namespace: str, service: str) -> dict:
    """A StatefulSet as a team wrote it by hand before it knew sglpool."""
    labels = {"app": "by-hand"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "p-b200", "namespace": namespace},
        "spec": {
            "serviceName": service,
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-B200"},
                    "containers": [{"name": "engine", "image": "example/by-hand:1"}],
                },
            },
        },
    }


def test_adopting_a_statefulset_written_by_hand(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    """Its immutable fields differ: it is orphaned and recreated with its old template, then rolled, never emptied."""
    kubectl("apply", "-f", "-", input=json.dumps(foreign_statefulset(namespace, "by-hand")))
    by_hand = ("get", "pods", "-l", "app=by-hand", "-n", namespace)
    wait_until(lambda: sum(is_ready(p) for p in kubectl.json(*by_hand)["items"]) == 2, timeout_s=30, describe="it runs")
    before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in kubectl.json(*by_hand)["items"]}
    pool = make_pool(replicas=2)
    pool.wait_for("Stalled", reason="NameConflict")
    assert {p["metadata"]["name"]: p["metadata"]["uid"] for p in kubectl.json(*by_hand)["items"]} == before
    least = 2

    def adopted() -> bool:
        nonlocal least
        pods = kubectl.json("get", "pods", "-n", namespace)["items"]
        least = min(least, sum(is_ready(p) for p in pods))
        return pool.condition("Ready").get("reason") == "AllReplicasReady"

    kubectl("annotate", "statefulset", "p-b200", "-n", namespace, "sglpool.io/adopt-object=true")
    pool.apply(load={"tokensPerRequest": 90_000})
    wait_until(adopted, timeout_s=120, describe="the pool is ready on its own template")
    assert least >= 1
    assert not set(pool.uids().values()) & set(before.values())
    assert pool.statefulset()["spec"]["serviceName"] == "p-engine"


def test_adopting_a_restored_pool_restarts_nothing(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    """The pool was deleted without its children, or comes back from a backup: they are handed over by annotation."""
    pool = make_pool(replicas=2)
    pool.wait_ready()
    before = pool.uids()
    kubectl("delete", "sglpool", "p", "-n", namespace, "--cascade=orphan")
    kubectl("wait", "--for=delete", "sglpool/p", "-n", namespace, "--timeout=30s")
    pool.apply()
    assert "p-" in pool.wait_for("Stalled", reason="NameConflict")["message"]
    kinds = (
        "statefulsets,deployments,services,serviceaccounts,poddisruptionbudgets,configmaps,roles,rolebindings,"
        "networkpolicies"
    )
    kubectl("annotate", kinds, "-l", "sglpool.io/pool=p", "-n", namespace, "sglpool.io/adopt-object=true")
    pool.apply(load={"tokensPerRequest": 90_000})
    pool.wait_ready()
    assert pool.uids() == before
    owner = pool.get()["metadata"]["uid"]
    assert pool.statefulset()["metadata"]["ownerReferences"][0]["uid"] == owner


def test_configmaps_live_as_long_as_a_revision_refers_to_them(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str, operator: OperatorProcess
) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    first = {key for key in pool.versions() if key.startswith("ConfigMap/p-launch-")}
    pool.apply(engine={"warmup": {"prompts": 1}})
    pool.wait_ready()
    operator.stop()
    operator.start()
    both = {key for key in pool.versions() if key.startswith("ConfigMap/p-launch-")}
    assert len(both) == 2
    assert first < both, "the old revision can still be gone back to"
    kubectl("patch", "statefulset", "p-b200", "-n", namespace, "-p", '{"spec": {"revisionHistoryLimit": 0}}')

    def revisions() -> int:
        return sum(key.startswith("ControllerRevision/") for key in pool.versions())

    wait_until(lambda: revisions() == 1, timeout_s=30, describe="the old revision is gone")
    operator.stop()
    operator.start()
    wait_until(
        lambda: {key for key in pool.versions() if key.startswith("ConfigMap/p-launch-")} == both - first,
        timeout_s=30,
        describe="its ConfigMap is gone too",
    )
    assert is_ready(pool.pods()["p-b200-0"])
