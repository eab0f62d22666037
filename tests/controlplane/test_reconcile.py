"""A pool's life on a real API server with real controllers: create, scale, change, break, heal, delete."""

from __future__ import annotations

import json

import pytest

from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import PoolMaker
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane


def managers(statefulset: dict, field: str) -> set[str]:
    """Managers that own a field of spec by server-side apply."""
    return {
        entry["manager"]
        for entry in statefulset["metadata"]["managedFields"]
        if field in json.dumps(entry["fieldsV1"].get("f:spec", {})) and entry["operation"] == "Apply"
    }


def test_a_pool_becomes_ready_with_every_child(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    pool = make_pool(replicas=2)
    kubectl("wait", "--for=condition=Ready", "sglpool/p", "-n", namespace, "--timeout=60s", timeout_s=70)
    kinds = {key.split("/")[0] for key in pool.versions()}
    assert kinds >= {"StatefulSet", "Service", "ServiceAccount", "PodDisruptionBudget", "ConfigMap"}
    pods = pool.pods()
    assert sorted(pods) == ["p-b200-0", "p-b200-1"]
    assert {pod["spec"]["nodeName"].split("-")[0] for pod in pods.values()} == {"b200"}
    assert pool.get()["status"]["summary"] == {"ready": "2/2", "gpus": "2 B200"}
    row = kubectl("get", "sglpool", "p", "-n", namespace).splitlines()[1].split()
    assert row[:3] == ["p", "gpt-oss-120b", "2/2"]
    assert "AllReplicasReady" in row


def test_two_replicas_of_four_gpus_share_a_node(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=2, tensorParallelSize=4)
    pool.wait_ready()
    nodes = {pod["spec"]["nodeName"] for pod in pool.pods().values()}
    assert len(nodes) == 1


def test_replicas_have_one_writer(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    statefulset = pool.statefulset()
    assert managers(statefulset, "f:replicas") == {"sglpool-scale"}
    assert managers(statefulset, "f:partition") == {"sglpool-scale"}
    assert managers(statefulset, "f:template") == {"sglpool"}


def test_a_parked_pool_keeps_zero_through_a_change_of_template(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=0)
    pool.wait_for("Ready", reason="Parked")
    pool.apply(engine={"maxQueuedRequests": 77})
    pool.wait_for("Ready", reason="Parked")
    wait_until(
        lambda: "77" in json.dumps(pool.statefulset()["spec"]["template"]), timeout_s=20, describe="the new template"
    )
    assert pool.statefulset()["spec"]["replicas"] == 0
    assert pool.pods() == {}
    pool.apply(replicas=1)
    pool.wait_ready()


def test_kubectl_scale_up_and_down(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    kubectl("scale", "sglpool/p", "--replicas=3", "-n", namespace)
    pool.wait_ready()
    assert sorted(pool.pods()) == ["p-b200-0", "p-b200-1", "p-b200-2"]
    kubectl("scale", "sglpool/p", "--replicas=1", "-n", namespace)
    pool.wait_ready()
    wait_until(lambda: sorted(pool.pods()) == ["p-b200-0"], timeout_s=30, describe="one pod is left")
    assert pool.get()["status"]["replicas"] == 1


def test_removing_a_gpu_type_removes_only_its_statefulset(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=2, gpus=[{"type": "B200", "maxReplicas": 1}, {"type": "B300"}])
    pool.wait_ready()
    assert sorted(pool.pods()) == ["p-b200-0", "p-b300-0"]
    uid = pool.pods()["p-b200-0"]["metadata"]["uid"]
    pool.apply(replicas=1, gpus=[{"type": "B200"}])
    pool.wait_ready()
    wait_until(lambda: sorted(pool.pods()) == ["p-b200-0"], timeout_s=30, describe="the B300 pod is gone")
    assert pool.pods()["p-b200-0"]["metadata"]["uid"] == uid
    assert "StatefulSet/p-b300" not in pool.versions()


def test_equivalent_edits_change_no_child(make_pool: PoolMaker, operator: OperatorProcess) -> None:
    """The same bytes in other units, maps in another order, targets, and a restart of the operator."""
    hicache = {"dtype": "bf16", "hiCache": {"size": "1024Gi"}}
    template = {"annotations": {"sandbox.sglpool.io/load-delay": "1s", "a": "1", "b": "2"}}
    pool = make_pool(kvCache=hicache, template=template, tensorParallelSize=8)
    pool.wait_ready()
    before, uids = pool.versions(), pool.uids()
    pool.apply(
        kvCache={"hiCache": {"size": "1Ti"}, "dtype": "bf16"},
        template={"annotations": {"b": "2", "a": "1", "sandbox.sglpool.io/load-delay": "1s"}},
        load={"tokensPerRequest": 50_000},
        rollout={"drainTimeout": "20m"},
        gpus=[{"type": "B200", "targetRunningRequests": 3}],
    )
    pool.wait_ready()
    operator.stop()
    operator.start()
    pool.wait_ready()
    assert pool.versions() == before
    assert pool.uids() == uids


def test_an_infeasible_change_touches_nothing_and_says_what_would_fit(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    before = pool.versions()
    pool.apply(gpus=[{"type": "B200", "targetRunningRequests": 1000}], load={"tokensPerRequest": 1_000_000})
    message = pool.wait_for("Feasible", reason="KVCapacityExceeded")["message"]
    assert "1,000" in message
    assert pool.condition("Stalled")["reason"] == "Infeasible"
    assert pool.condition("Available")["status"] == "True"
    assert pool.condition("Ready")["status"] == "False"
    assert pool.versions() == before
    pool.apply(gpus=[{"type": "B200"}], load=None)
    pool.wait_ready()
    assert pool.condition("Stalled") == {}
    assert pool.versions() == before


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"gpus": [{"type": "B500"}]}, "UnknownGPUType"),
        (
            {
                "model": {
                    "name": "gpt-oss-120b",
                    "profile": "gpt-oss-12b",
                    "source": {"hostPath": {"path": "/models/x"}},
                }
            },
            "UnknownProfile",
        ),
    ],
)
def test_unknown_names_stall_and_suggest(make_pool: PoolMaker, spec: dict, reason: str) -> None:
    pool = make_pool(**spec)
    condition = pool.wait_for("Stalled", reason=reason)
    assert "Known:" in condition["message"]
    assert pool.condition("Feasible")["status"] == "Unknown"
    assert pool.versions() == {}


def test_deletion_leaves_nothing(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready()
    kubectl("delete", "sglpool", "p", "-n", namespace)
    wait_until(lambda: not pool.versions() and not pool.pods(), timeout_s=30, describe="nothing of the pool is left")


def test_a_child_changed_or_deleted_by_hand_comes_back(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str, operator: OperatorProcess
) -> None:
    pool = make_pool(replicas=0)
    pool.wait_for("Ready", reason="Parked")
    kubectl("delete", "service", "p-engine", "-n", namespace)
    patch = '{"spec": {"maxUnavailable": 5}}'
    kubectl("patch", "pdb", "p-engine", "-n", namespace, "--type=merge", "-p", patch)
    operator.stop()
    operator.start()
    wait_until(lambda: "Service/p-engine" in pool.versions(), timeout_s=20, describe="the Service is back")

    def restored() -> bool:
        return bool(kubectl.json("get", "pdb", "p-engine", "-n", namespace)["spec"]["maxUnavailable"] == 1)

    wait_until(restored, timeout_s=20, describe="the PodDisruptionBudget is as it was")


def test_a_foreign_object_of_a_childs_name_is_never_taken(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str
) -> None:
    kubectl("create", "service", "clusterip", "p-engine", "--tcp=80:80", "-n", namespace)
    pool = make_pool(replicas=1)
    message = pool.wait_for("Stalled", reason="NameConflict")["message"]
    assert "Service p-engine" in message
    assert "sglpool.io/adopt-object" in message
    service = kubectl.json("get", "service", "p-engine", "-n", namespace)
    assert service["spec"]["ports"][0]["port"] == 80
    assert "ownerReferences" not in service["metadata"]
    kubectl("delete", "service", "p-engine", "-n", namespace)
    pool.apply(load={"tokensPerRequest": 90_000})
    pool.wait_ready()


def test_the_operators_endpoints(operator: OperatorProcess, make_pool: PoolMaker) -> None:
    make_pool(replicas=1).wait_ready()
    assert operator.get("/healthz")[0] == 200
    assert operator.get("/readyz")[0] == 200
    code, text = operator.get("/metrics")
    assert code == 200
    assert "workqueue_depth" in text
    assert 'type="Ready"' in text
