"""Replicas go while agents work: nobody gets an error, and who reads the Events knows what it cost."""

from __future__ import annotations

import re

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import READY_S
from support.agents import Agents
from support.pool_on_cluster import PoolMaker, is_ready
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
        pool.apply(replicas=1)
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
    cost = r"\d+ conversations? left, [\d,]+ warm tokens dropped, \d+ requests? cut\."
    assert re.fullmatch(rf"leaves-b200 to 1: leaves-b200-1 with {cost}", down)
