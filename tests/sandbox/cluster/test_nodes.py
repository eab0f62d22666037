"""Nodes by the command line: without power, gone for good, cordoned; and what becomes of the pods on them."""

from __future__ import annotations

import time

import pytest

from sandbox.cluster.conftest import AgentCluster
from sandbox.cluster.engines import READY_S, Json, loads, processes_of, say
from sglpool.plan.nodes import LOST_S
from support.pool_on_cluster import NodeMaker, PoolMaker, is_ready
from support.streaming import SESSION, Streams, chat, send
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
# The controller manager waits 40 s before it collects pods of an unknown node, and looks every 20 s.
COLLECTED_S = 90.0
# Whatever would move back for a node that has returned would have been begun by then: ticks are 1 s here.
FLAP_S = 5.0


def node_row(cluster: AgentCluster, name: str) -> str:
    rows = [line.split() for line in cluster.told("nodes").splitlines()]
    return next((" ".join(row) for row in rows if row[:1] == [name]), "")


def test_a_stopped_node_holds_its_pods_and_a_deleted_one_lets_them_go(
    cluster: AgentCluster, add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    stopped, deleted = "b200-3", "b200-4"
    holds = make_pool("holds", template=add_nodes(stopped, place="stopped"), replicas=1)
    moves = make_pool("moves", template=add_nodes(deleted, place="deleted"), replicas=1)
    holds.wait_ready(READY_S)
    moves.wait_ready(READY_S)
    held, moved = holds.pods()["holds-b200-0"], moves.pods()["moves-b200-0"]
    assert node_row(cluster, stopped) == f"{stopped} NVIDIA-B200 yes 1 of 8 60x"

    cluster.told("node", "stop", stopped)
    cluster.told("node", "delete", deleted)
    for pool, name in ((holds, "holds-b200-0"), (moves, "moves-b200-0")):
        wait_until(
            lambda pool=pool, name=name: not list(processes_of(pool.namespace, name)),  # type: ignore[misc]
            timeout_s=10,
            describe=f"the processes of {name} are gone",
        )

    # The pool moves to a node that is there; its pod has the same name, so the old one has to go first.
    add_nodes("b200-5", place="deleted")

    def terminating() -> bool:
        return bool(holds.pods()["holds-b200-0"]["metadata"].get("deletionTimestamp"))

    wait_until(terminating, timeout_s=60, describe="the stopped node's pod is marked for deletion")
    assert node_row(cluster, stopped).startswith(f"{stopped} NVIDIA-B200 no ")
    assert holds.condition("Ready")["status"] == "False"
    assert holds.pods()["holds-b200-0"]["metadata"]["uid"] == held["metadata"]["uid"], "nobody says that it ended"

    cluster.told("node", "start", stopped)
    wait_until(lambda: is_new(holds.pods(), held), timeout_s=60, describe="the node lets the old pod go")
    holds.wait_ready(READY_S)

    wait_until(lambda: is_new(moves.pods(), moved), timeout_s=COLLECTED_S, describe="the lost pod is collected")
    moves.wait_ready(READY_S)
    pod = moves.pods()["moves-b200-0"]
    assert pod["spec"]["nodeName"] == "b200-5"
    assert say(pod, "hello").completion_tokens > 0


def test_a_node_that_is_lost_costs_its_own_streams_and_nothing_when_it_returns(
    cluster: AgentCluster, add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    """Replaced on another node, conversations at home elsewhere, counted once, and no flap."""
    pool = make_pool(
        "spot",
        tensorParallelSize=8,
        template=add_nodes("b200-8", "b200-9", "b200-10", place="three"),
        autoscaling={"minReplicas": 2, "maxReplicas": 3},
        gpus=[{"type": "B200", "targetRunningRequests": 8}],
        router={"replicas": 1},
        engine={"extraArgs": ["--stream-interval=100"]},
    )
    pool.wait_ready(2 * READY_S)
    wait_until(lambda: pool.condition("ScalingActive").get("status") == "True", timeout_s=30, describe="it is read")
    before = pool.pods()
    router, node = pool.router_address(), before["spot-b200-1"]["spec"]["nodeName"]
    sessions = [f"agent-{number}" for number in range(8)]
    replicas: set[tuple[int, int]] = set()

    with Streams(router, sessions, tokens=100_000) as streams:
        cut = loads(before["spot-b200-1"])["num_running_reqs"]
        assert 0 < cut < len(sessions), "both replicas have some"
        cluster.told("node", "stop", node)
        wait_until(
            lambda: len(streams.broken()) >= cut, timeout_s=30, describe=lambda: f"they notice; {streams.broken()}"
        )
        again = [send(router, body=chat("go on") | {"model": "gpt-oss-120b"}, **{SESSION: s}) for s in streams.broken()]
        assert [reply.status for reply in again] == [200] * cut, "their conversations are at home elsewhere"

        def replaced() -> bool:
            pods, status = pool.pods(), pool.get()["status"]
            replicas.add((pool.statefulset()["spec"]["replicas"], status["autoscaling"]["desired"]))
            pod = pods.get("spot-b200-1")
            return pod is not None and is_ready(pod) and pod["spec"]["nodeName"] != node

        wait_until(
            replaced,
            timeout_s=COLLECTED_S + LOST_S + READY_S,
            describe=lambda: f"another takes its place; {pool.get()['status']}",
        )
        assert len(streams.broken()) == cut, "the others never noticed"
    pool.wait_ready(READY_S)
    after = pool.uids()
    assert after["spot-b200-0"] == before["spot-b200-0"]["metadata"]["uid"]

    cluster.told("node", "start", node)
    wait_until(lambda: " yes " in node_row(cluster, node), timeout_s=60, describe="the node is back")
    watched_until_s = time.monotonic() + FLAP_S
    while time.monotonic() < watched_until_s:
        assert pool.uids() == after
        assert pool.condition("Ready")["status"] == "True"
    status = pool.get()["status"]
    assert (status["replicas"], status["readyReplicas"], status["summary"]["ready"]) == (2, 2, "2/2")
    assert replicas == {(2, 2)}, "what was lost and what came for it are one"
    assert "history" not in status["autoscaling"]


def is_new(pods: dict[str, Json], old: Json) -> bool:
    return any(pod["metadata"]["uid"] != old["metadata"]["uid"] for pod in pods.values())


def test_a_cordoned_node_keeps_its_pods_and_takes_no_new_ones(
    cluster: AgentCluster, add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    node = "b200-3"
    template = add_nodes(node, place="cordoned")
    cluster.told("node", "cordon", node)
    pool = make_pool(template=template, replicas=1)
    condition = pool.wait_for("Scheduled", reason="NoMatchingNodes", timeout_s=30)
    assert "not cordoned" in condition["message"]
    assert node_row(cluster, node) == f"{node} NVIDIA-B200 yes, cordoned 0 of 8 60x"
    cluster.told("node", "uncordon", node)
    wait_until(lambda: pool.pods()["p-b200-0"]["spec"].get("nodeName") == node, timeout_s=30, describe="it has a node")


@pytest.mark.parametrize("action", ["stop", "delete"])
def test_a_node_that_is_not_there_is_named(cluster: AgentCluster, action: str) -> None:
    done = cluster.sglpool("node", action, "b200-99")
    assert (done.returncode, 'nodes "b200-99" not found' in done.stderr) == (1, True)


def test_nodes_are_added_by_type_and_number(cluster: AgentCluster) -> None:
    done = cluster.sglpool("node", "add", "b100-0")
    assert (done.returncode, "such as b200-0" in done.stderr) == (1, True)
    versions = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
    assert set(versions.split()) == {"v0.1.0-sandbox"}
