"""Gates, pauses and aborts of roll-outs, and nodes that go, on the real controllers of StatefulSets and Jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, NodeMaker, PoolMaker, is_ready
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

CHANGED = {"maxQueuedRequests": 99}
GATE = {"image": "example/test:1", "args": ["--min-score", "0.8"]}
TOO_SHORT = {**GATE, "timeout": "2s"}
SOON = {"drainTimeout": "1s"}


class Gates:
    """The gate's Jobs and pods of one pool."""

    def __init__(self, pool: ClusterPool) -> None:
        self.pool = pool
        self._selector = ("-n", pool.namespace, "-l", f"sglpool.io/pool={pool.name},app.kubernetes.io/component=gate")

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Jobs by uid."""
        items = self.pool.kubectl.json("get", "jobs", *self._selector)["items"]
        return {job["metadata"]["uid"]: job for job in items}

    def wait_for_one(self, *, but: str = "") -> dict[str, Any]:
        """The only Job, another one than that."""
        found = wait_until(
            lambda: next((job for uid, job in self.jobs().items() if uid != but), None),
            timeout_s=60,
            describe="a gate's Job exists",
        )
        assert found is not None
        return found

    def wait_for_attempt(self, number: int) -> dict[str, Any]:
        """The Job of that attempt, once it has a pod."""

        def found() -> dict[str, Any] | None:
            jobs = self.jobs().values()
            return next((job for job in jobs if _attempt(job) == number and self.pod_of(job) is not None), None)

        job = wait_until(
            found, timeout_s=60, describe=lambda: f"attempt {number}; {[*map(_name, self.jobs().values())]}"
        )
        assert job is not None
        return job

    def pod_of(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The pod of a Job, once it has a node."""
        items = self.pool.kubectl.json("get", "pods", *self._selector)["items"]
        mine = (pod for pod in items if pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"])
        return next((pod for pod in mine if pod["spec"].get("nodeName")), None)

    def end_pod(self, job: dict[str, Any], *, disrupted: bool) -> None:
        """End its pod as a kubelet does: because its command failed, or because the pod has to go."""
        pod = self.pod_of(job)
        assert pod is not None
        conditions = pod["status"]["conditions"]
        if disrupted:
            reason = {"reason": "TerminationByKubelet", "message": "Pod was terminated in response to node shutdown"}
            now = pod["metadata"]["creationTimestamp"]
            conditions += [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now, **reason}]
        ended = {"exitCode": 143 if disrupted else 1, "finishedAt": pod["metadata"]["creationTimestamp"]}
        containers = [
            {"name": c["name"], "image": c["image"], "imageID": "", "ready": False, "restartCount": 0}
            | {"state": {"terminated": ended}}
            for c in pod["spec"]["containers"]
        ]
        status = {"phase": "Failed", "conditions": conditions, "containerStatuses": containers}
        self.pool.kubectl(
            *("patch", "pod", _name(pod), "-n", self.pool.namespace, "--subresource=status", "--type=merge"),
            *("-p", json.dumps({"status": status})),
        )

    def let_pass(self) -> None:
        """The test of the running Job succeeds."""
        pods = ("pods", *self._selector)
        wait_until(
            lambda: self.pool.kubectl.json("get", *pods)["items"], timeout_s=60, describe="the gate's Job has a pod"
        )
        self.pool.kubectl("label", "--overwrite", *pods, "sandbox.sglpool.io/complete=true")


def _name(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["name"])


def _attempt(job: dict[str, Any]) -> int:
    """From `p-gate-<hash>` or `p-gate-<hash>-<attempt>`."""
    number = _name(job).split("-")[3:]
    return int(number[0]) if number else 1


def annotate(pool: ClusterPool, word: str) -> None:
    pool.kubectl("annotate", "sglpool", pool.name, "-n", pool.namespace, "--overwrite", word)


def marks(pool: ClusterPool) -> dict[str, str | None]:
    return {n: (p["metadata"].get("annotations") or {}).get("sglpool.io/unproven") for n, p in pool.pods().items()}


def test_a_revision_passes_its_gate_on_one_replica_before_the_others_get_it(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=3)
    pool.wait_ready()
    old = pool.revisions()
    pool.apply(rollout={**SOON, "gate": GATE})
    pool.wait_ready()
    gates = Gates(pool)
    assert not gates.jobs(), "what serves already is not taken away"
    pool.apply(engine=CHANGED)
    job = gates.wait_for_one()
    environment = {e["name"]: e["value"] for e in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    tested = pool.pods()["p-b200-2"]
    assert environment["OPENAI_BASE_URL"] == f"http://{tested['status']['podIP']}:30000/v1"
    assert (environment["MODEL"], environment["SGLPOOL_POOL"]) == ("gpt-oss-120b", "p")
    pool.wait_for("Progressing", reason="GateRunning")
    assert {n: r == old[n] for n, r in pool.revisions().items()} == {
        "p-b200-0": True,
        "p-b200-1": True,
        "p-b200-2": False,
    }
    assert marks(pool) == {"p-b200-0": None, "p-b200-1": None, "p-b200-2": "true"}
    gates.let_pass()
    pool.wait_ready(timeout_s=90)
    assert len(set(pool.revisions().values())) == 1
    assert marks(pool)["p-b200-2"] == "false"
    assert "true" not in marks(pool).values()


def test_a_gate_that_takes_too_long_fails_and_its_replica_returns(
    make_pool: PoolMaker, operator: OperatorProcess
) -> None:
    pool = make_pool(replicas=2)
    pool.wait_ready()
    before, old = pool.uids(), pool.revisions()
    pool.apply(engine=CHANGED, rollout={**SOON, "gate": TOO_SHORT})
    said = pool.wait_for("Ready", reason="GateFailed", timeout_s=90)["message"]
    assert "DeadlineExceeded" in said
    assert "sglpool.io/rollout" in said

    def returned() -> bool:
        return pool.revisions() == old and all(map(is_ready, pool.pods().values()))

    wait_until(returned, timeout_s=60, describe="the replica runs the old revision again")
    assert pool.uids()["p-b200-0"] == before["p-b200-0"]
    gates = Gates(pool)
    [first] = gates.jobs()
    operator.kill()
    operator.start()
    pool.wait_for("Ready", reason="GateFailed")
    assert [*gates.jobs()] == [first], "a failure is remembered, and not tried again by itself"
    annotate(pool, "sglpool.io/rollout=resume")
    gates.wait_for_one(but=first)
    pool.apply(engine=None)
    pool.wait_ready(timeout_s=90)
    assert pool.revisions() == old
    wait_until(lambda: not gates.jobs(), timeout_s=30, describe="nobody waits for that test any more")


def test_a_test_whose_pod_was_taken_away_is_made_again_and_one_that_fails_is_not(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=2)
    pool.wait_ready()
    old = pool.revisions()
    pool.apply(engine=CHANGED, rollout={**SOON, "gate": GATE})
    gates = Gates(pool)
    gates.end_pod(gates.wait_for_attempt(1), disrupted=True)
    second = gates.wait_for_attempt(2)
    assert "lost its pod 1 of at most 3 times" in pool.wait_for("Progressing", reason="GateRunning")["message"]
    assert marks(pool)["p-b200-1"] == "true", "still without traffic"
    gates.end_pod(second, disrupted=False)
    said = pool.wait_for("Ready", reason="GateFailed")["message"]
    assert "BackoffLimitExceeded" in said
    wait_until(lambda: pool.revisions() == old, timeout_s=60, describe="the replica runs the old revision again")

    annotate(pool, "sglpool.io/rollout=resume")
    for number in (1, 2, 3):
        gates.end_pod(gates.wait_for_attempt(number), disrupted=True)
    wait_until(
        lambda: "was taken away 3 times" in pool.condition("Ready")["message"],
        timeout_s=60,
        describe=lambda: f"three times are enough; {pool.condition('Ready')}",
    )
    wait_until(lambda: pool.revisions() == old, timeout_s=60, describe="the replica runs the old revision again")


def test_the_only_replica_of_a_pool_returns_too(make_pool: PoolMaker) -> None:
    """Kubernetes itself has forgotten the earlier revision by then: every replica has had the new one."""
    pool = make_pool(replicas=1)
    pool.wait_ready()
    old = pool.revisions()
    pool.apply(engine=CHANGED, rollout={**SOON, "gate": TOO_SHORT})
    pool.wait_for("Ready", reason="GateFailed", timeout_s=90)

    def returned() -> bool:
        return pool.revisions() == old and all(map(is_ready, pool.pods().values()))

    wait_until(returned, timeout_s=60, describe="the replica runs the old revision again")
    assert marks(pool)["p-b200-0"] != "true"
    assert "again" in pool.wait_for("Ready", reason="GateFailed")["message"]
    pool.apply(rollout={**SOON, "gate": GATE})
    gates = Gates(pool)
    wait_until(
        lambda: any(j["spec"]["activeDeadlineSeconds"] > 2 for j in gates.jobs().values()),
        timeout_s=60,
        describe="the other test is tried",
    )
    gates.let_pass()
    pool.wait_ready(timeout_s=90)
    assert pool.revisions() != old


def test_a_first_revision_gets_no_traffic_before_it_passes(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=2, rollout={**SOON, "gate": GATE})
    gates = Gates(pool)
    gates.wait_for_one()
    wait_until(lambda: [*marks(pool).values()] == ["true"] * 2, timeout_s=30, describe="no replica has traffic")
    gates.let_pass()
    pool.wait_ready()
    wait_until(lambda: [*marks(pool).values()] == ["false"] * 2, timeout_s=30, describe="both have traffic")


def test_a_paused_roll_out_stays_and_an_aborted_one_returns(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=3, template={"annotations": {"sandbox.sglpool.io/load-delay": "2s"}})
    pool.wait_ready()
    old = pool.revisions()
    pool.apply(engine=CHANGED)
    wait_until(lambda: pool.revisions().get("p-b200-2", "") != old["p-b200-2"], timeout_s=60, describe="it has begun")
    annotate(pool, "sglpool.io/rollout=pause")
    pool.wait_for("Progressing", reason="RolloutPaused")
    wait_until(lambda: all(map(is_ready, pool.pods().values())), timeout_s=60, describe="what was begun is done")
    assert pool.revisions()["p-b200-0"] == old["p-b200-0"]
    annotate(pool, "sglpool.io/rollout=abort")
    pool.wait_for("Progressing", reason="RolloutAborted")
    wait_until(lambda: pool.revisions() == old, timeout_s=60, describe="every replica runs the old revision")
    wait_until(lambda: all(map(is_ready, pool.pods().values())), timeout_s=60, describe="all are ready")
    annotate(pool, "sglpool.io/rollout=halt")
    assert "halt" in pool.wait_for("Ready", reason="RolloutUnknownWord")["message"]
    assert pool.revisions() == old
    annotate(pool, "sglpool.io/rollout-")
    pool.wait_ready(timeout_s=90)
    assert not set(pool.revisions().values()) & set(old.values())


def on_nodes(pool: ClusterPool) -> dict[str, str]:
    return {name: pod["spec"].get("nodeName", "") for name, pod in pool.pods().items()}


def wait_elsewhere(pool: ClusterPool, node: str, *, timeout_s: float) -> None:
    def elsewhere() -> bool:
        pods = pool.pods()
        return len(pods) == 2 and all(map(is_ready, pods.values())) and node not in on_nodes(pool).values()

    wait_until(elsewhere, timeout_s=timeout_s, describe=f"two ready replicas, none of them on {node}")


def test_replicas_leave_a_cordoned_node_and_one_that_is_gone(
    make_pool: PoolMaker, kubectl: Kubectl, add_nodes: NodeMaker
) -> None:
    first, second = "b200-250", "b200-251"
    pool = make_pool(replicas=2, template=add_nodes(first, second), rollout=SOON)
    pool.wait_ready()
    kubectl("cordon", first)
    wait_elsewhere(pool, first, timeout_s=60)
    kubectl("uncordon", first)
    before = pool.uids()
    kubectl("delete", "node", second)
    wait_elsewhere(pool, second, timeout_s=60)
    assert not set(pool.uids().values()) & set(before.values())


@pytest.fixture
def nodes_for_tests(kubectl: Kubectl, add_nodes: NodeMaker) -> Iterator[None]:
    """Two nodes without GPUs, where the pods of gates go; no others of that kind take any."""
    nodes = ["cpu-250", "cpu-251"]
    add_nodes(*nodes)
    names = [node["metadata"]["name"] for node in kubectl.json("get", "nodes")["items"]]
    others = [name for name in names if name.startswith("cpu-") and name not in nodes]
    if others:
        kubectl("cordon", *others)
    yield
    if others:
        kubectl("uncordon", *others)


@pytest.mark.usefixtures("nodes_for_tests")
def test_a_test_whose_node_is_gone_is_made_again_elsewhere(make_pool: PoolMaker, kubectl: Kubectl) -> None:
    pool = make_pool(replicas=1, rollout={**SOON, "gate": GATE})
    gates = Gates(pool)
    first = gates.pod_of(gates.wait_for_attempt(1))
    assert first is not None
    assert first["spec"]["nodeName"].startswith("cpu-25")
    kubectl("delete", "node", first["spec"]["nodeName"])
    second = gates.pod_of(gates.wait_for_attempt(2))
    assert second is not None
    assert second["spec"]["nodeName"] != first["spec"]["nodeName"]
    gates.let_pass()
    pool.wait_ready()
