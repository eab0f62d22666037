"""Autoscaled pools of whose load nothing can be read: held within their bounds, told why, and not written again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, PoolMaker
from support.router_state import RouterState
from support.waiting import wait_quiet, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]
Json = dict[str, Any]
SPEED = 5
TICK_S = 15.0 / SPEED
# Figures alone are written once a minute at most.
SHOWN_S = 60.0 / SPEED


@pytest.fixture(scope="module")
def operator(
    operator: OperatorProcess, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One whose autoscaler lives faster, in place of the session's."""
    operator.stop()
    quick = OperatorProcess(kubeconfig, tmp_path_factory.mktemp("quick") / "operator.log", "--clock-speed", str(SPEED))
    quick.start()
    yield quick
    quick.kill()
    operator.start()


def scaling(pool: ClusterPool) -> Json:
    return dict(pool.get()["status"].get("autoscaling") or {})


def make(make_pool: PoolMaker, *, least: int = 2, **spec: Any) -> ClusterPool:
    """An autoscaled pool whose fake pods answer nobody, once it was found out that they do not."""
    pool = make_pool(autoscaling={"minReplicas": least, "maxReplicas": 4, **spec.pop("autoscaling", {})}, **spec)
    wait_until(lambda: len(pool.pods()) == least, timeout_s=60, describe=f"{least} replicas; {pool.get()}")
    wait_until(
        lambda: pool.condition("ScalingActive").get("status") == "False",
        timeout_s=60,
        describe=lambda: f"ScalingActive is False; it is {pool.condition('ScalingActive')}",
    )
    return pool


def test_routers_that_cannot_be_read_hold_the_size_and_are_named(
    make_pool: PoolMaker, operator: OperatorProcess
) -> None:
    pool = make(make_pool, router={"replicas": 1})
    pool.wait_for("ScalingActive", reason="MetricsUnavailable")
    # Until the router is there, it says that none carries traffic.
    words = "The requests in flight cannot be read. Router p-router-"
    wait_until(lambda: words in pool.condition("ScalingActive")["message"], timeout_s=60, describe=words)
    assert "The size is held within its bounds." in pool.condition("ScalingActive")["message"]
    assert (scaling(pool)["desired"], scaling(pool)["reason"]) == (2, "NoLoadTotal")
    assert pool.get()["status"]["summary"]["scaling"] == "NoLoadTotal"
    assert "load" not in pool.get()["status"], "unknown is not zero"

    pool.apply(autoscaling={"minReplicas": 3, "maxReplicas": 4})
    wait_until(lambda: pool.statefulset()["spec"]["replicas"] == 3, timeout_s=30, describe="bounds hold all the same")
    wait_until(lambda: scaling(pool)["desired"] == 3, timeout_s=30, describe="and are told")
    assert [(c["from"], c["to"]) for c in scaling(pool)["history"]] == [(2, 3)]

    operator.stop()
    operator.start()
    wait_until(lambda: pool.condition("ScalingActive").get("reason"), timeout_s=30, describe="it is told again")
    assert pool.statefulset()["spec"]["replicas"] == 3
    assert scaling(pool)["history"][0]["to"] == 3, "the history outlives the operator"


def test_a_prometheus_that_is_down_holds_the_size_and_is_named(make_pool: PoolMaker) -> None:
    metrics = {"metrics": {"prometheus": {"url": "http://127.0.0.1:1"}}}
    pool = make(make_pool, least=1, autoscaling=metrics, router={"enabled": False})
    condition = pool.wait_for("ScalingActive", reason="ReplicasUnreadable")
    assert "Prometheus http://127.0.0.1:1 cannot be asked" in condition["message"]
    assert pool.statefulset()["spec"]["replicas"] == 1


@pytest.mark.timeout(400)
def test_a_restart_amid_growth_neither_grows_again_nor_shrinks(make_pool: PoolMaker, operator: OperatorProcess) -> None:
    pool = make_pool(
        autoscaling={"minReplicas": 2, "maxReplicas": 12},
        gpus=[{"type": "B200", "targetRunningRequests": 5}],
        router={"replicas": 1},
    )
    wait_until(lambda: len(pool.pods()) == 2, timeout_s=60, describe="2 replicas")
    with RouterState(pool, "127.94.0.1") as router:
        router.says(9)
        pool.wait_for("ScalingActive", reason="ValidMetrics", timeout_s=60)
        assert pool.statefulset()["spec"]["replicas"] == 2

        router.says(24)
        grown = 6  # 24 / 0.9 = 26.7 places
        wait_until(lambda: pool.statefulset()["spec"]["replicas"] == grown, timeout_s=60, describe="it grows")
        operator.kill()
        wait_until(lambda: len(pool.pods()) == grown, timeout_s=30, describe="the pods follow")
        router.says(24)
        asked = router.asked
        operator.start()
        # The first decision rests on one reading, those after it on what came since.
        wait_until(lambda: router.asked >= asked + 3, timeout_s=60, describe="it is read three times")
        wait_until(lambda: scaling(pool)["desired"] == grown, timeout_s=30, describe="the growth is told")
        assert pool.statefulset()["spec"]["replicas"] == grown
        told = [(c["from"], c["to"]) for c in scaling(pool)["history"]]
        assert (told[0][1], told[-1][0]) == (grown, 2), told
        assert all(before < after for before, after in told)
        scaled = scaling(pool)["lastScaleTime"]

        router.says(0)
        asked = router.asked
        wait_until(lambda: router.asked >= asked + 3, timeout_s=60, describe="it is read without load")
        assert pool.statefulset()["spec"]["replicas"] == grown, "nothing shrinks before a window is full"
        assert not pool.events().get("DrainStarted")
        assert scaling(pool)["lastScaleTime"] == scaled
        assert [(c["from"], c["to"]) for c in scaling(pool)["history"]] == told


def test_a_tick_without_a_change_writes_nothing(make_pool: PoolMaker) -> None:
    pool = make(make_pool, least=1, router={"enabled": False})

    wait_quiet(
        lambda: pool.get()["metadata"]["resourceVersion"],
        quiet_s=SHOWN_S + TICK_S,
        timeout_s=60,
        what="nothing changes, and still it is written",
    )
