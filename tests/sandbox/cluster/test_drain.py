"""Replicas go while agents work: nobody gets an error, and who reads the Events knows what it cost.

Not here: replicas that go for their health or their node (`test_health`, `test_nodes`).
"""

from __future__ import annotations

import re

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import READY_S, Json, metric
from support.agents import Agents
from support.pool_on_cluster import ClusterPool, NodeMaker, PoolMaker, is_gone, is_ready, mark
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]

DRAIN_S = 10
# The sandbox's busybox begins with a shell.
TEST_THAT_RUNS: Json = {"image": "busybox", "args": ["-c", "sleep 1000"]}
TEST_THAT_PASSES: Json = {"image": "busybox", "args": ["-c", "true"]}


def test_a_roll_out_and_a_smaller_pool_cost_no_answer(cluster: AgentCluster, make_pool: PoolMaker) -> None:
    pool = make_pool(
        "leaves",
        replicas=2,
        router={"replicas": 1},
        engine=WARM_UP,
        rollout={"drainTimeout": f"{DRAIN_S}s"},
    )
    pool.wait_ready(READY_S)
    before = pool.uids()
    agents = Agents(pool.router_address(), model="gpt-oss-120b", max_tokens=200)
    with agents.busy(4):
        # Nothing that the router has to know too: it would be replaced, and these clients know its address.
        pool.apply(engine=WARM_UP | {"extraArgs": ["--stream-interval=50"]})
        wait_until(
            lambda: not {*pool.uids().values()} & {*before.values()},
            timeout_s=2 * READY_S,
            describe=lambda: f"both are replaced; {pool.get()['status']}; {pool.events()}",
        )
        pool.wait_ready(READY_S)
        pool.kubectl("scale", "sglpool", pool.name, "-n", pool.namespace, "--replicas=1")
        wait_until(
            lambda: len(pool.pods()) == 1,
            timeout_s=READY_S,
            describe=lambda: f"one is left; {pool.get()['status']}; {pool.events()}",
        )
        pool.wait_ready(READY_S)
    assert agents.answers.keys() == {200}, "nobody noticed"
    [left] = pool.pods().values()
    assert is_ready(left)
    assert "sglpool.io/draining" not in (left["metadata"].get("annotations") or {})
    told = pool.events()
    assert {message.split(":")[0] for message in told["DrainStarted"]} == {"leaves-b200-0", "leaves-b200-1"}
    (down,) = told["ScaledDown"]
    cost = r"\d+ conversations? left, [\d,]+ warm tokens dropped, \d+ requests? cut( unless over within \d+ s)?\."
    assert re.fullmatch(rf"leaves-b200 to 1: leaves-b200-1 with {cost}", down)


def test_a_drain_of_the_autoscaler_outlives_the_operator(cluster: AgentCluster, make_pool: PoolMaker) -> None:
    """The next operator knows nothing of the load of the past, and grants no new time."""
    pool = make_pool(
        "goes-on",
        autoscaling={"minReplicas": 1, "maxReplicas": 2},
        gpus=[{"type": "B200", "targetRunningRequests": 2}],
        router={"replicas": 1},
        engine=WARM_UP | {"extraArgs": ["--stream-interval=500"]},
        rollout={"drainTimeout": "45s"},
    )
    pool.wait_ready(READY_S)
    agents = Agents(pool.router_address(), model="gpt-oss-120b")
    with agents.busy(4):
        wait_until(
            lambda: pool.get()["status"]["summary"]["ready"] == "2/2",
            timeout_s=READY_S,
            describe=lambda: f"two replicas for the load; {pool.get()['status']}",
        )
    with agents.busy(1):
        begun = wait_until(
            lambda: mark(pool, "goes-on-b200-1"),
            timeout_s=READY_S,
            describe=lambda: f"one is being emptied; {pool.get()['status']}",
        )
        assert begun is not None
        cluster.replace_operator()
        wait_until(
            lambda: is_gone(pool, "goes-on-b200-1", begun),
            timeout_s=90,
            describe=lambda: f"it goes; {pool.get()['status']}; {pool.events()}",
        )
        wait_until(lambda: len(pool.pods()) == 1, timeout_s=60, describe="it is gone")
    assert pool.statefulset()["spec"]["replicas"] == 1
    told = pool.events()
    assert "DrainCancelled" not in told
    assert len(told["DrainStarted"]) == 1
    assert agents.answers.keys() == {200}, "nobody noticed"
    history = pool.get()["status"]["autoscaling"]["history"]
    assert [(one["from"], one["to"]) for one in history] == [(2, 1), (1, 2)], "and it decides nothing twice"


def test_a_type_that_leaves_the_spec_is_emptied_once_the_others_serve(
    add_nodes: NodeMaker, make_pool: PoolMaker
) -> None:
    add_nodes("b300-1", place="other")
    pool = make_pool(
        "moves",
        router={"replicas": 1},
        engine=WARM_UP | {"extraArgs": ["--stream-interval=100"]},
        rollout={"drainTimeout": "20s"},
    )
    pool.wait_ready(READY_S)
    agents = Agents(pool.router_address(), model="gpt-oss-120b", max_tokens=1000)
    with agents.busy(3):
        wait_until(lambda: agents.answers[200] > 3, timeout_s=60, describe="they work")
        pool.apply(gpus=[{"type": "B300"}])
        wait_until(
            lambda: mark(pool, "moves-b200-0"),
            timeout_s=READY_S,
            describe=lambda: f"the old one is emptied; {pool.get()['status']}",
        )
        assert is_ready(pool.pods()["moves-b300-0"]), "the new one serves first"
        wait_until(
            lambda: [*pool.pods()] == ["moves-b300-0"],
            timeout_s=READY_S,
            describe=lambda: f"the new one is left; {pool.get()['status']}",
        )
        pool.wait_ready(READY_S)
    assert agents.answers.keys() == {200}, "nobody noticed"
    left = pool.kubectl("get", "statefulsets", "-n", pool.namespace, "-o", "name").split()
    assert left == ["statefulset.apps/moves-b300"]


def test_no_request_reaches_a_revision_that_its_gate_has_not_passed(make_pool: PoolMaker) -> None:
    """Neither the replica under test, nor one that is made anew or added meanwhile."""
    many_tokens, few_tokens = 1000, 100
    pool = make_pool(
        "gated",
        replicas=2,
        router={"replicas": 1},
        engine=WARM_UP | {"extraArgs": ["--stream-interval=100"]},
        rollout={"drainTimeout": "5s", "gate": TEST_THAT_RUNS},
    )
    # Its first revision is not proven either, until the test ends.
    unproven = wait_until(lambda: unproven_pods(pool, ready=2), timeout_s=READY_S, describe="both are ready")
    assert [*unproven] == ["gated-b200-0", "gated-b200-1"]
    pool.apply(rollout={"drainTimeout": "5s", "gate": TEST_THAT_PASSES})
    pool.wait_ready(READY_S)
    pool.apply(rollout={"drainTimeout": "5s", "gate": TEST_THAT_RUNS})

    agents = Agents(pool.router_address(), model="gpt-oss-120b", max_tokens=many_tokens)
    with agents.busy(4):
        pool.apply(engine=WARM_UP | {"extraArgs": ["--stream-interval=50"]})
        first = wait_until(lambda: unproven_pods(pool, ready=1), timeout_s=READY_S, describe="one is under test")
        pool.kubectl("delete", "pod", *first, "-n", pool.namespace, "--wait=false")
        pool.kubectl("scale", "sglpool", pool.name, "-n", pool.namespace, "--replicas=3")
        wait_until(
            lambda: unproven_pods(pool, ready=2).keys() == {"gated-b200-1", "gated-b200-2"},
            timeout_s=READY_S,
            describe=lambda: f"one is made anew, and one is added; {pool.get()['status']}",
        )
        unproven = unproven_pods(pool, ready=2)
        assert {pod["metadata"]["uid"] for pod in unproven.values()}.isdisjoint(
            pod["metadata"]["uid"] for pod in first.values()
        )
        before = {name: metric(pod, "sglang:generation_tokens_total") for name, pod in unproven.items()}
        answered = agents.answers[200]
        wait_until(lambda: agents.answers[200] > answered + 12, timeout_s=60, describe="they work")
        after = {name: metric(pod, "sglang:generation_tokens_total") for name, pod in unproven.items()}
        # What is left are liveness probes, of one token each.
        assert all(after[name] - before[name] < few_tokens for name in before), (before, after)
        assert pool.condition("Progressing")["reason"] == "GateRunning"

        pool.apply(replicas=3, rollout={"drainTimeout": "5s", "gate": TEST_THAT_PASSES})
        pool.wait_ready(2 * READY_S)
        pods = pool.pods()
        wait_until(
            lambda: (
                metric(pods["gated-b200-1"], "sglang:generation_tokens_total") > before["gated-b200-1"] + many_tokens
            ),
            timeout_s=60,
            describe="what has passed gets traffic",
        )
    assert agents.answers.keys() == {200}, "nobody noticed"


def unproven_pods(pool: ClusterPool, *, ready: int) -> dict[str, Json]:
    """Ready pods whose revision gets no traffic, by name, once there are so many."""
    found = {
        name: pod
        for name, pod in pool.pods().items()
        if is_ready(pod) and (pod["metadata"].get("annotations") or {}).get("sglpool.io/unproven") == "true"
    }
    return found if len(found) == ready else {}
