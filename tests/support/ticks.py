"""Pools under the eyes of the autoscaler: their objects in a store, and a reader that says what a test wants."""

from __future__ import annotations

import asyncio
from typing import Any

from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.controller.autoscaler import INTERVAL_S, Autoscaler
from sglpool.controller.metrics import Metrics
from sglpool.controller.store import PoolKey, Store
from sglpool.plan.drain import CAUSE_SIZE
from sglpool.signals import Reading, ReplicaReading, Target
from support import pools

KEY = ("serving", "kimi")
LONG_AGO = "2026-01-01T00:00:00Z"
NOW_S = 1_800_000_000.0


def autoscaled(name: str = "kimi", **spec: Any) -> Pool:
    changes = {
        "replicas": None,
        "gpus": [{"type": "B200", "targetRunningRequests": 4}],
        "autoscaling": {"minReplicas": 1, "maxReplicas": 8},
        "router": {"enabled": True},
        **spec,
    }
    return pools.pool(changes, metadata={"name": name, "uid": f"pool-{name}", "generation": 1})


def replica(**changes: Any) -> ReplicaReading:
    return ReplicaReading(**{"in_flight": 0, "queued": 0, "kv_used_tokens": 0, "kv_total_tokens": 1000, **changes})


def reading(in_flight: float | None = 0.0, **changes: Any) -> Reading:
    replicas = changes.pop("replicas", {"pod-0": replica()})
    fields = {"routers_read": 1, "routers_known": 1, "replicas": replicas, "measured": replicas, **changes}
    return Reading(in_flight=in_flight, **fields)


class FakeReader:
    """Answers with what it is told, after a while."""

    def __init__(self, answer: Reading | None = None) -> None:
        self.answer = answer or reading()
        self.takes_s = 0.0
        self.calls: list[tuple[float, str]] = []

    async def read(self, target: Target) -> Reading:
        self.calls.append((asyncio.get_running_loop().time(), target.pool))
        await asyncio.sleep(self.takes_s)
        return self.answer


class Scene:
    """An autoscaler with pools whose objects lie in a store."""

    def __init__(self, *, clock_speed: float = 1.0) -> None:
        self.store = Store()
        self.reader = FakeReader()
        self.asked: list[PoolKey] = []
        self.metrics = Metrics()
        self.wall_s = NOW_S
        self.versions = 0
        self.autoscaler = Autoscaler(
            store=self.store,
            reader=self.reader,
            enqueue=self.asked.append,
            metrics=self.metrics,
            wall_clock_s=lambda: NOW_S + asyncio.get_running_loop().time(),
            clock_speed=clock_speed,
        )

    def put(self, replicas: int = 1, *, draining: tuple[int, ...] = (), name: str = "kimi") -> None:
        """StatefulSet and ready pods."""
        self.versions += 1
        labels = {names.LABEL_POOL: name, names.LABEL_GPU: "B200", names.LABEL_COMPONENT: names.COMPONENT_ENGINE}
        meta = {"namespace": "serving", "resourceVersion": str(self.versions), "labels": labels}
        owner = {"controller": True, "uid": f"pool-{name}", "kind": "InferencePool", "name": name}
        self.store.put_statefulset(
            {
                "metadata": {**meta, "name": f"{name}-b200", "uid": f"sts-{name}", "ownerReferences": [owner]},
                "spec": {"replicas": replicas},
            }
        )
        for ordinal in range(replicas):
            marks = (
                {names.ANNOTATION_DRAINING: "true", names.ANNOTATION_DRAIN_CAUSE: CAUSE_SIZE}
                if ordinal in draining
                else {}
            )
            metadata = {
                **meta,
                "name": f"{name}-b200-{ordinal}",
                "uid": f"pod-{ordinal}",
                "annotations": marks,
                "creationTimestamp": LONG_AGO,
                "ownerReferences": [{"controller": True, "uid": f"sts-{name}", "kind": "StatefulSet", "name": name}],
            }
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}
            self.store.put_pod(
                {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"conditions": [ready], "podIP": "1.2.3.4"}}
            )

    def follow(self, pool: Pool | None = None) -> None:
        pool = pool or autoscaled()
        self.autoscaler.follow(pool, pools.size(pool), self.store.observed((pool.namespace, pool.name), {}))

    async def tick(self, times: int = 1, *, every_s: float = INTERVAL_S) -> None:
        for _ in range(times):
            await self.autoscaler.tick(KEY)
            await asyncio.sleep(every_s)
