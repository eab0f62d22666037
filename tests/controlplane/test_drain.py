"""Replicas that have to go, on a real API server: why stands on their pods, and outlives the operator.

Fake pods say nothing of their load, so they stay until their deadline. Not here: conversations that leave, which takes
engines (`tests/sandbox/cluster`).
"""

from __future__ import annotations

import pytest

from support.operator_process import OperatorProcess
from support.pool_on_cluster import PoolMaker, is_gone, mark
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

DRAIN_S = 20


def test_a_lowered_maximum_drains_and_the_next_operator_goes_on_to_the_same_deadline(
    make_pool: PoolMaker, operator: OperatorProcess
) -> None:
    pool = make_pool(
        autoscaling={"minReplicas": 3, "maxReplicas": 4},
        router={"enabled": False},
        rollout={"drainTimeout": f"{DRAIN_S}s"},
    )
    pool.wait_ready()
    pool.apply(autoscaling={"minReplicas": 1, "maxReplicas": 2})
    begun = wait_until(lambda: mark(pool, "p-b200-2"), timeout_s=30, describe="the highest is being emptied")
    assert begun is not None
    annotations = pool.pods()["p-b200-2"]["metadata"]["annotations"]
    assert annotations["sglpool.io/drain-reason"] == "2 replicas are wanted"
    assert "1 draining" in pool.get()["status"]["summary"]["scaling"]
    operator.kill()
    operator.start()
    wait_until(lambda: is_gone(pool, "p-b200-2", begun), timeout_s=3 * DRAIN_S, describe="it goes at its deadline")
    wait_until(lambda: len(pool.pods()) == 2, timeout_s=30, describe="two are left")
    assert pool.statefulset()["spec"]["replicas"] == 2
    assert "DrainCancelled" not in pool.events()
    assert mark(pool, "p-b200-1") is None


def test_a_drain_that_nobody_wants_any_more_leaves_no_mark(make_pool: PoolMaker, operator: OperatorProcess) -> None:
    """Also when it was taken back while no operator ran."""
    pool = make_pool(replicas=3, router={"enabled": False}, rollout={"drainTimeout": "10m"})
    pool.wait_ready()
    before = pool.uids()
    pool.kubectl("scale", "sglpool", pool.name, "-n", pool.namespace, "--replicas=1")
    wait_until(lambda: mark(pool, "p-b200-1"), timeout_s=30, describe="two are being emptied")
    operator.kill()
    pool.kubectl("scale", "sglpool", pool.name, "-n", pool.namespace, "--replicas=3")
    operator.start()
    wait_until(
        lambda: not any(mark(pool, name) for name in before), timeout_s=30, describe="all three are wanted again"
    )
    pool.wait_ready()
    assert pool.uids() == before
    left = {key for pod in pool.pods().values() for key in pod["metadata"].get("annotations") or {}}
    assert not {key for key in left if "drain" in key}
