"""A pool follows its load: real router, real operator, engines that answer; the autoscaler lives as fast as they do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import READY_S
from support.pool_on_cluster import ClusterPool, PoolMaker
from support.streaming import SESSION, chat, send
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]
Json = dict[str, Any]

# A chunk for so many tokens: this is about requests, not about tokens.
ENGINE = WARM_UP | {"extraArgs": ["--stream-interval=500"]}
MODEL = "gpt-oss-120b"
TARGET = 2
MOST = 3


class Agents:
    """Clients that always have a request under way, and count what they got."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.answers: Counter[int | str] = Counter()

    @contextmanager
    def busy(self, count: int) -> Iterator[None]:
        """So many of them, until the block ends and every request is answered."""
        over = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(f"agent-{n}", over), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)

    def _ask(self, session: str, over: threading.Event) -> None:
        body = chat(f"{session} begins", max_tokens=10_000, ignore_eos=True) | {"model": MODEL}
        while not over.is_set():
            try:
                self.answers[send(self._address, body=body, **{SESSION: session}).status] += 1
            except OSError as error:
                self.answers[repr(error)] += 1


def router_address(pool: ClusterPool) -> str:
    labels = f"sglpool.io/pool={pool.name},app.kubernetes.io/component=router"
    (pod,) = pool.kubectl.json("get", "pods", "-n", pool.namespace, "-l", labels)["items"]
    return f"{pod['status']['podIP']}:8000"


def events(pool: ClusterPool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in pool.kubectl.json("get", "events", "-n", pool.namespace)["items"]:
        if event["involvedObject"]["kind"] == "InferencePool":
            found.setdefault(event["reason"], []).append(event["message"])
    return found


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
    agents = Agents(router_address(pool))

    def size() -> tuple[int, str]:
        return pool.statefulset()["spec"]["replicas"], pool.get()["status"]["summary"]["ready"]

    with agents.busy(MOST * TARGET):
        wait_until(
            lambda: size() == (MOST, f"{MOST}/{MOST}"),
            timeout_s=READY_S,
            describe=lambda: f"replicas for the load; {pool.get()['status']}",
        )
        wait_until(
            lambda: (pool.get()["status"].get("load") or {}).get("runningRequests") == MOST * TARGET,
            timeout_s=30,
            describe="the load is shown",
        )
        grown = pool.get()["status"]
        assert grown["autoscaling"]["desired"] == MOST
        assert grown["autoscaling"]["lastScaleTime"]
        assert {change["reason"] for change in grown["autoscaling"]["history"]} <= {
            "LoadAboveTarget",
            "RequestsWaiting",
        }
        assert grown["autoscaling"]["inputs"]["readyReplicas"] == MOST
        assert "ScaledUp" in events(pool)

    with agents.busy(1):
        wait_until(
            lambda: size() == (1, "1/1") and len(pool.pods()) == 1,
            timeout_s=150,
            describe=lambda: f"one replica again; {pool.get()['status']}",
        )
    shrunk = pool.get()["status"]["autoscaling"]
    assert (shrunk["desired"], shrunk["history"][0]["to"]) == (1, 1)
    assert shrunk["history"][0]["reason"] == "LoadBelowTarget"
    told = events(pool)
    assert {"DrainStarted", "ScaledDown"} <= told.keys()
    assert all("0 requests cut" in message for message in told["ScaledDown"])
    assert agents.answers.keys() == {200}, "nobody noticed"
