"""The operator's figures of pools: they show what is, count what was done, and end with the pool."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest

from sglpool.api import names
from sglpool.api.pool import Pool, parse_pool
from sglpool.controller.metrics import Metrics
from sglpool.plan import DeleteObject, Drained, MarkPod, Observed, ObservedPod, ReplicaLoad, Scale
from sglpool.plan.surroundings import ObservedNode
from support import pools
from support.observed import observed_pod

Json = dict[str, Any]


def pool() -> Pool:
    return parse_pool(pools.manifest({"tensorParallelSize": 4}))


def status(ready: str = "AllReplicasReady", **more: Any) -> Json:
    true = ready in ("AllReplicasReady", "Parked")
    return {
        "conditions": [{"type": "Ready", "status": "True" if true else "False", "reason": ready}],
        "gpus": [{"type": "B200", "desired": 3, "replicas": 2, "ready": 2, "updated": 1}],
        "readyReplicas": 2,
        **more,
    }


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    """Series of a family by their labels."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith(name + "{")]
    return {series.removeprefix(name): float(value) for series, _, value in found}


def seen(*pods: ObservedPod, **more: Any) -> Observed:
    return Observed(statefulsets=(), pods=pods, refusals={}, **more)


def load(uid: str, **changes: Any) -> ReplicaLoad:
    idle = {"idle_reads": 2, "in_flight": 0, "conversations": 0, "warm_tokens": 0, "age_s": 1.0}
    return ReplicaLoad(uid=uid, **{**idle, **changes})


def test_a_pool_shows_its_conditions_replicas_and_gpus_and_nothing_of_what_no_longer_holds():
    metrics, of = Metrics(), pool()
    key = f'namespace="{of.namespace}",pool="{of.name}"'
    metrics.observe_pool(of, status("ReplicasStarting", autoscaling={"inputs": {"inFlight": 12.5}}))
    metrics.observe_pool(of, status())
    assert shown(metrics, "sglpool_pool_reason") == {f'{{{key},reason="AllReplicasReady",type="Ready"}}': 1.0}
    conditions = shown(metrics, "sglpool_pool_condition")
    assert conditions[f'{{{key},type="Ready"}}'] == 1.0
    assert conditions[f'{{{key},type="Stalled"}}'] == 0.0
    assert f'{{{key},type="RouterReady"}}' not in conditions
    assert list(shown(metrics, "sglpool_pool_gpus").values()) == [8.0]
    assert sorted(shown(metrics, "sglpool_pool_replicas").values()) == [1.0, 2.0, 2.0, 3.0]
    assert shown(metrics, "sglpool_pool_autoscaler") == {}


def test_replicas_that_go_are_counted_by_how_they_went():
    metrics, of = Metrics(), pool()
    observed = seen(*(observed_pod(n, uid=f"u{n}", name=f"p-{n}") for n in range(3)))
    metrics.observe_pool(of, status())
    drained = Drained(pods=("p-1", "p-2"), conversations=1, warm_tokens=5, requests=3, unread=0)
    steps = [
        MarkPod(name="p-1", uid="u1", annotations={names.ANNOTATION_DRAINING: "true"}, reason="r"),
        MarkPod(name="p-0", uid="u0", annotations={names.ANNOTATION_DRAINING: None}, reason="it is wanted again"),
        Scale(name="p", replicas=1, partition=0, reason="r", drained=drained),
    ]
    metrics.observe_steps(of, steps, observed, {"u1": load("u1"), "u2": load("u2", idle_reads=0, in_flight=3)})
    assert list(shown(metrics, "sglpool_pool_drains_total").values()) == [1.0]
    assert list(shown(metrics, "sglpool_pool_cut_requests_total").values()) == [3.0]
    removed = shown(metrics, "sglpool_pool_removed_replicas_total")
    assert {labels.split('end="')[1].split('"')[0]: count for labels, count in removed.items()} == {
        "empty": 1.0,
        "late": 1.0,
    }


def test_a_replica_is_lost_only_with_its_node():
    metrics, of = Metrics(), pool()
    nodes = {"gone": ObservedNode(name="gone", ready=False, since_s=0.0, deleted=True)} | {
        "well": ObservedNode(name="well", ready=True, since_s=0.0)
    }
    pods = (observed_pod(0, uid="u0", name="p-0", node="gone"), observed_pod(1, uid="u1", name="p-1", node="well"))
    metrics.observe_pool(of, status())
    steps = [DeleteObject(kind="Pod", name=pod.name, uid=pod.uid, reason="r") for pod in pods]
    metrics.observe_steps(of, steps, seen(*pods, nodes=nodes), {})
    assert sum(shown(metrics, "sglpool_pool_lost_replicas_total").values()) == 1.0


def test_counters_are_there_before_anything_happened_and_gone_with_the_pool():
    metrics, of = Metrics(), pool()
    metrics.observe_pool(of, status())
    counted = ("drains", "removed_replicas", "cut_requests", "lost_replicas")
    for name in counted:
        assert set(shown(metrics, f"sglpool_pool_{name}_total").values()) == {0.0}, name
    metrics.forget_pool((of.namespace, of.name))
    assert "sglpool_pool_" not in "".join(
        line for line in generate_latest(metrics.registry).decode().splitlines(True) if not line.startswith("#")
    )
