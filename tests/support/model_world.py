"""A pool and the model cluster that it lives in, brought forward a round of plan and tick at a time."""

from __future__ import annotations

import functools
import json
from typing import Any

from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.api.validate import load_pool
from sglpool.catalog import load_catalog
from sglpool.plan import Plan, make_plan
from sglpool.plan.status import make_status
from sglpool.sizing.pools import SizedGPU, size_pool
from support import pools
from support.model_cluster import DRAIN_S, ModelCluster
from support.model_objects import ModelPod

CATALOG = load_catalog()
PLENTY = {"B200": 50, "B300": 50, "H200": 50}
ROUNDS = 80
"""Rounds of plan and tick in which anything here must settle: a few for each replica, one after another."""

B200, B300 = {"type": "B200"}, {"type": "B300"}
INFEASIBLE: pools.Json = {"kvCache": {"hiCache": {"size": "9000G"}}}
FEASIBLE: pools.Json = {"kvCache": {"hiCache": {"size": "480G"}}}


@functools.cache
def parsed(text: str) -> tuple[Pool, tuple[SizedGPU, ...]]:
    pool = load_pool(json.loads(text))
    return pool, size_pool(pool, CATALOG, node_memory_bytes={}, hicache_bytes={})


class World:
    """A pool, and the cluster that it lives in."""

    def __init__(self, *, waits_for_all: bool = False, **spec: Any) -> None:
        self.cluster = ModelCluster(dict(PLENTY), waits_for_all=waits_for_all)
        self.manifest = pools.manifest(metadata={"uid": "pool"})
        self.manifest["spec"]["rollout"] = {"drainTimeout": f"{DRAIN_S:.0f}s"}
        self.edit(gpus=[B200], replicas=3, **spec)

    def edit(self, rollout: pools.Json | None = None, **spec: Any) -> None:
        self.manifest["spec"].update(spec)
        self.manifest["spec"] = {field: value for field, value in self.manifest["spec"].items() if value is not None}
        merged = {**self.manifest["spec"]["rollout"], **(rollout or {})}
        self.manifest["spec"]["rollout"] = {k: v for k, v in merged.items() if v is not None}
        self.cluster.max_unavailable = self.pool.spec.rollout.max_unavailable
        self.cluster.routed = self.pool.spec.router.enabled

    @property
    def pool(self) -> Pool:
        return parsed(json.dumps(self.manifest))[0]

    @property
    def sized(self) -> tuple[SizedGPU, ...]:
        return parsed(json.dumps(self.manifest))[1]

    def say(self, word: str) -> None:
        """Annotate the pool about its roll-out; an empty word removes the annotation."""
        self.manifest["metadata"]["annotations"] = {names.ANNOTATION_ROLLOUT: word} if word else {}

    def plan(self, **more: Any) -> Plan:
        cluster = self.cluster
        return make_plan(self.pool, self.sized, cluster.observe(), loads=cluster.loads(), now_s=cluster.now_s, **more)

    def round(self, **more: Any) -> Plan:
        plan = self.plan(**more)
        self.cluster.carry_out(self.pool, plan)
        self.cluster.tick()
        return plan

    def settle(self) -> None:
        """Until there is nothing to do and every wanted replica is ready on the right revision."""
        for _ in range(ROUNDS):
            if not self.round().steps and self.settled():
                return
        raise AssertionError(f"not settled after {ROUNDS} rounds: {self.plan().steps} {self.cluster.pods}")

    def settled(self) -> bool:
        status = make_status(
            self.pool, self.sized, self.cluster.observe(), desired=self.plan().desired, blockers=(), now_s=0
        )
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        progressing = next(c for c in status["conditions"] if c["type"] == "Progressing")
        return bool(ready["status"] == "True" and progressing["reason"] == "Complete")

    def assert_reached(self) -> None:
        desired = {k: v for k, v in self.plan().desired.items() if v}
        pods = self.cluster.pods.values()
        assert {t: sum(p.gpu_type == t for p in pods) for t in {p.gpu_type for p in pods}} == desired
        assert sum(desired.values()) == self.pool.spec.replicas
        assert all(p.ready and not p.terminating for p in pods)
        for current in self.cluster.statefulsets.values():
            assert current.partition == 0
            assert {p.revision for p in pods if p.owner == current.uid} <= {current.update_revision}
        assert not any(p.annotations.get(names.ANNOTATION_UNPROVEN) == "true" for p in pods)

    def pods(self) -> list[ModelPod]:
        return sorted((p for p in self.cluster.pods.values() if not p.terminating), key=lambda p: p.name)


GATE: pools.Json = {"image": "example/test:1"}
