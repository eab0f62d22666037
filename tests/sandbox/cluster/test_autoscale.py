"""A pool follows its load: real router, real operator, engines that answer; the autoscaler lives as fast as they do."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import READY_S
from support.agents import Agents
from support.pool_on_cluster import ClusterPool, PoolMaker
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]
Json = dict[str, Any]

# A chunk for so many tokens: this is about requests, not about tokens.
ENGINE = WARM_UP | {"extraArgs": ["--stream-interval=500"]}
MODEL = "gpt-oss-120b"
TARGET = 2
MOST = 3


def shown(pool: ClusterPool) -> tuple[int | None, float | None]:
    """Requests and ready replicas as status shows them."""
    status = pool.get()["status"]
    return (status.get("load") or {}).get("runningRequests"), status["autoscaling"]["inputs"].get("readyReplicas")


def test_a_pool_follows_its_load_and_tells_why(cluster: AgentCluster, make_pool: PoolMaker) -> None:
    pool = make_pool(
        "scaled",
        autoscaling={"minReplicas": 1, "maxReplicas": MOST},
        gpus=[{"type": "B200", "targetRunningRequests": TARGET}],
        router={"replicas": 1},
        engine=ENGINE,
        rollout={"drainTimeout": "10s"},
    )
    pool.wait_ready(READY_S)
    wait_until(lambda: pool.condition("ScalingActive").get("status") == "True", timeout_s=30, describe="it is read")
    agents = Agents(pool.router_address(), model=MODEL)

    def size() -> tuple[int, str]:
        return pool.statefulset()["spec"]["replicas"], pool.get()["status"]["summary"]["ready"]

    with agents.busy(MOST * TARGET):
        wait_until(
            lambda: size() == (MOST, f"{MOST}/{MOST}"),
            timeout_s=READY_S,
            describe=lambda: f"replicas for the load; {pool.get()['status']}",
        )
        # Figures are shown a while after they were read.
        wait_until(
            lambda: shown(pool) == (MOST * TARGET, MOST),
            timeout_s=30,
            describe=lambda: f"load and replicas are shown; {pool.get()['status']}",
        )
        grown = pool.get()["status"]
        assert grown["autoscaling"]["desired"] == MOST
        assert grown["autoscaling"]["lastScaleTime"]
        assert {change["reason"] for change in grown["autoscaling"]["history"]} <= {
            "LoadAboveTarget",
            "RequestsWaiting",
        }
        assert "ScaledUp" in pool.events()

    with agents.busy(1):
        wait_until(
            lambda: size() == (1, "1/1") and len(pool.pods()) == 1,
            timeout_s=150,
            describe=lambda: f"one replica again; {pool.get()['status']}",
        )
    shrunk = pool.get()["status"]["autoscaling"]
    assert (shrunk["desired"], shrunk["history"][0]["to"]) == (1, 1)
    assert shrunk["history"][0]["reason"] == "LoadBelowTarget"
    told = pool.events()
    assert {"DrainStarted", "ScaledDown"} <= told.keys()
    assert all("0 requests cut" in message for message in told["ScaledDown"])
    assert agents.answers.keys() == {200}, "nobody noticed"
