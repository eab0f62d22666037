"""A replica that answers every probe and does badly all the same is found, emptied and replaced; nobody notices."""

from __future__ import annotations

import json
import re

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import READY_S, metric
from sglpool.plan.nodes import SHORT_S
from sglpool.plan.verdicts import STILL_S
from support.agents import Agents
from support.pool_on_cluster import COMMIT, NodeMaker, PoolMaker, is_gone, mark
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]

MODEL = "deepseek-v3.2"
# At the speed of the watch the five minutes of a verdict are 15 s.
FOUND_S = 90.0
AGENTS = 6


def test_a_replica_whose_speculation_collapses_is_replaced_and_its_peer_stays(
    cluster: AgentCluster, add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    pool = make_pool(
        "ill",
        model={
            "name": MODEL,
            "profile": "deepseek-v3.2-nvfp4",
            "source": {"huggingFace": {"repo": "nvidia/DeepSeek-V3.2-NVFP4", "revision": COMMIT}},
        },
        kvCache={},
        tensorParallelSize=4,
        template=add_nodes("b200-6", place="ill"),
        speculative={"algorithm": "NEXTN"},
        replicas=2,
        router={"replicas": 1},
        engine=WARM_UP | {"extraArgs": ["--stream-interval=100"]},
        rollout={"drainTimeout": "15s"},
    )
    pool.wait_ready(READY_S)
    before = pool.uids()
    agents = Agents(pool.router_address(), model=MODEL, max_tokens=1000)
    with agents.busy(6):
        cluster.told("fault", "ill-b200-1", "--accept-length", "1", "-n", pool.namespace)
        wait_until(
            lambda: "ReplicaUnhealthy" in pool.events(),
            timeout_s=FOUND_S,
            describe=lambda: f"it is found; {pool.get()['status']}; {agents.answers}",
        )
        begun = wait_until(lambda: mark(pool, "ill-b200-1"), timeout_s=FOUND_S, describe="it is being emptied")
        cluster.replace_operator()
        assert begun is not None
        wait_until(
            lambda: is_gone(pool, "ill-b200-1", begun),
            timeout_s=FOUND_S,
            describe=lambda: f"it goes, by the next operator; {pool.get()['status']}; {pool.events()}",
        )
        wait_until(
            lambda: pool.pods().get("ill-b200-1", {"metadata": {"uid": begun[0]}})["metadata"]["uid"] != begun[0],
            timeout_s=FOUND_S,
            describe=lambda: f"it is replaced; {pool.get()['status']}; {pool.events()}",
        )
        pool.wait_ready(READY_S)
    told = pool.events()
    (found,) = told["ReplicaUnhealthy"]
    figures = re.fullmatch(
        r"ill-b200-1 is unhealthy: its accept length was (\d\.\d\d) over the last (\d+) s \(([\d,]+) verify calls\)\.",
        found,
    )
    assert figures, found
    assert float(figures[1]) <= 1.5
    assert int(figures[2]) >= 300
    assert ["ill-b200-1: its accept length was" in message for message in told["DrainStarted"]] == [True]
    assert "DrainCancelled" not in told
    assert any("its accept length was" in message for message in told["ReplicaReplaced"])
    after = pool.uids()
    assert after["ill-b200-0"] == before["ill-b200-0"], "its peer stays"
    assert agents.answers.keys() == {200}, "nobody noticed"
    assert "unhealthy" not in pool.condition("Available")["message"]


def test_a_replica_that_holds_requests_and_computes_nothing_is_replaced(
    cluster: AgentCluster, add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    # Whose requests are not computed does not leave: the time to drain is spent in any case.
    pool = make_pool(
        "still",
        replicas=2,
        template=add_nodes("b200-6", place="still"),
        router={"replicas": 1},
        engine=WARM_UP,
        rollout={"drainTimeout": "5s"},
    )
    pool.wait_ready(READY_S)
    before = pool.pods()
    # The engine ends when they have given up, and by then they have another home.
    agents = Agents(pool.router_address(), model="gpt-oss-120b", max_tokens=2000, patience_s=40)
    with agents.busy(AGENTS):
        wait_until(
            lambda: metric(before["still-b200-1"], "sglang:num_running_reqs") > 0,
            timeout_s=60,
            describe=lambda: f"it has requests; {agents.answers}",
        )
        cluster.told("fault", "still-b200-1", "--stall", "-n", pool.namespace)
        wait_until(
            lambda: "ReplicaUnhealthy" in pool.events(),
            timeout_s=FOUND_S,
            describe=lambda: f"it is found; {pool.get()['status']}; {agents.answers}",
        )
        wait_until(
            lambda: "ReplicaReplaced" in pool.events(),
            timeout_s=FOUND_S,
            describe=lambda: f"it is replaced; {pool.get()['status']}; {pool.events()}",
        )
        pool.wait_ready(READY_S)
        answered = agents.answers[200]
        wait_until(lambda: agents.answers[200] > answered, timeout_s=60, describe="it goes on")
    told = pool.events()
    (found,) = told["ReplicaUnhealthy"]
    figures = re.fullmatch(
        r"still-b200-1 is unhealthy: it has computed no token in (\d+) s with (\d+) requests to answer\.", found
    )
    assert figures, found
    assert int(figures[1]) >= STILL_S
    assert int(figures[2]) >= 1
    assert any("still-b200-1: it has computed no token in" in message for message in told["DrainStarted"])
    assert any("it has computed no token in" in message for message in told["ReplicaReplaced"])
    after = pool.uids()
    assert after["still-b200-0"] == before["still-b200-0"]["metadata"]["uid"], "its peer stays"
    assert after["still-b200-1"] != before["still-b200-1"]["metadata"]["uid"]
    # Nothing helps who lives there: each waits in vain once, also who comes back after the figure was read.
    assert sum(agents.answers.values()) - agents.answers[200] < AGENTS, agents.answers
    assert "unhealthy" not in pool.condition("Available")["message"]


def test_a_replica_whose_node_lost_a_gpu_moves_and_its_neighbour_stays(
    cluster: AgentCluster, add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    template = add_nodes("b200-6", "b200-7", place="short")
    pool = make_pool("short", tensorParallelSize=4, replicas=2, template=template)
    pool.wait_ready(READY_S)
    before = pool.pods()
    [node] = {pod["spec"]["nodeName"] for pod in before.values()}
    # As a device plugin does when a GPU has fallen off the bus.
    gpus = {"status": {"allocatable": {"nvidia.com/gpu": "7"}}}
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(gpus))

    def moved() -> bool:
        pod = pool.pods().get("short-b200-1")
        return pod is not None and pod["spec"].get("nodeName") not in {None, node}

    wait_until(moved, timeout_s=SHORT_S + 60, describe=lambda: f"a replica moves; {pool.events()}")
    pool.wait_ready(READY_S)
    assert pool.pods()["short-b200-0"]["metadata"]["uid"] == before["short-b200-0"]["metadata"]["uid"]
    words = f"node {node} has 7 of the 8 GPUs that its replicas need"
    assert any(words in message for message in pool.events()["DrainStarted"])
    assert any(words in message for message in pool.events()["ReplicaReplaced"])
