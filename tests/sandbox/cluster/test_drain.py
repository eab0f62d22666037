"""Replicas go while agents work: nobody gets an error, and who reads the Events knows what it cost.

Not here: replicas that go for their health or their node (`test_health`, `test_nodes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import READY_S
from support.agents import Agents
from support.pool_on_cluster import PoolMaker, is_gone, is_ready, mark
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]

DRAIN_S = 10


def test_a_roll_out_and_a_smaller_pool_cost_no_answer(cluster: AgentCluster, make_pool: PoolMaker) -> None:
    pool = make_pool(
        "leaves",
        replicas=2,
        router={"replicas": 1},
        engine=WARM_UP,
        rollout={"drainTimeout": f"{DRAIN_S}s"},
    )
    pool.wait_ready(READY_S)
    before = {name: pod["metadata"]["uid"] for name, pod in pool.pods().items()}
    agents = Agents(pool.router_address(), model="gpt-oss-120b", max_tokens=200)
    with agents.busy(4):
        # Nothing that the router has to know too: it would be replaced, and these clients know its address.
        pool.apply(engine=WARM_UP | {"extraArgs": ["--stream-interval=50"]})
        wait_until(
            lambda: not {p["metadata"]["uid"] for p in pool.pods().values()} & set(before.values()),
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


@pytest.fixture
def other_node(cluster: AgentCluster) -> Iterator[None]:
    """A node of another type."""
    cluster.told("node", "add", "b300-1")
    yield
    cluster.kubectl("delete", "node", "b300-1", "--ignore-not-found")


@pytest.mark.usefixtures("other_node")
def test_a_type_that_leaves_the_spec_is_emptied_once_the_others_serve(make_pool: PoolMaker) -> None:
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
