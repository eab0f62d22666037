"""Reconcile and tick together: a pool at rest is never written, and a write leaves exactly what was meant."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglpool.catalog import load_catalog
from sglpool.controller.autoscaler import INTERVAL_S, Autoscaler
from sglpool.controller.collect import Collector
from sglpool.controller.health import HealthWatch
from sglpool.controller.metrics import Metrics
from sglpool.controller.queue import Retry
from sglpool.controller.reconcile import Reconciler
from sglpool.controller.store import PoolKey, Store
from sglpool.kube import NotFound, Resource
from sglpool.signals import Reading, ReplicaReading, Target
from support import pools
from support.fake_kube import FakeKube
from support.observed import observed_pod
from support.vitals import Engine, FakeEngines

Json = dict[str, Any]
KEY = ("serving", "kimi")
NOW_S = 1_800_000_000.0


class StatusKube(FakeKube):
    """The API server with the pool's status, which is patched as a real one does: maps merge, null removes."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[Json] = []

    @property
    def pool(self) -> Json:
        return self.objects["InferencePool", "kimi"]

    async def patch_status(self, resource: Resource, *, namespace: str, name: str, status: Mapping[str, Any]) -> Json:
        self._answer("patch", resource.kind, name)
        self.pool["status"] = merge(self.pool.get("status") or {}, status)
        self.statuses.append(copy.deepcopy(self.pool["status"]))
        return self.pool


def merge(into: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(into) if isinstance(into, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class Events:
    """Remembers Events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.messages: dict[str, list[str]] = {}

    def record(self, regarding: Json, *, reason: str, message: str, **_: object) -> bool:
        self.reasons.append(reason)
        self.messages.setdefault(reason, []).append(message)
        return True


class Operator:
    """Reconcile, tick and queue of one pool, without watches: writes come back through the store."""

    def __init__(self, **spec: Any) -> None:
        self.kube = StatusKube()
        changes = {
            "replicas": None,
            "gpus": [{"type": "B200", "targetRunningRequests": 4}],
            "autoscaling": {"minReplicas": 1, "maxReplicas": 8},
            **spec,
        }
        manifest = pools.manifest(changes, metadata={"uid": "pool", "generation": 1})
        self.kube.put({"apiVersion": "sglpool.io/v1alpha1", "kind": "InferencePool", **manifest})
        self.store = Store()
        self.asked: list[PoolKey] = []
        self.events = Events()
        self.reading = Reading()
        metrics = Metrics()

        def wall_clock_s() -> float:
            return NOW_S + asyncio.get_running_loop().time()

        self.autoscaler = Autoscaler(
            store=self.store, reader=self, enqueue=self.asked.append, metrics=metrics, wall_clock_s=wall_clock_s
        )
        self.engines = FakeEngines()
        self.health = HealthWatch(store=self.store, reader=self.engines, enqueue=self.asked.append, metrics=metrics)
        self.reconcile = Reconciler(
            kube=self.kube,
            store=self.store,
            catalog=load_catalog(),
            node_memory_bytes={},
            collector=Collector(self.kube),
            autoscaler=self.autoscaler,
            health=self.health,
            events=self.events,
            metrics=metrics,
            wall_clock_s=wall_clock_s,
            clock=asyncio.get_running_loop().time,
        )

    async def read(self, target: Target) -> Reading:
        """The reading that the test has set; replicas that came since are idle."""
        if not self.reading.replicas:
            return self.reading
        idle = engines(*(0 for _ in target.engines)).replicas
        replicas = {**idle, **self.reading.replicas}
        return replace(self.reading, replicas=replicas, measured=replicas)

    @property
    def status(self) -> Json:
        return dict(self.kube.pool["status"])

    async def settle(self) -> None:
        """Reconcile until nothing is asked for, and pretend that pods do what StatefulSets say."""
        for _ in range(6):
            self.asked.clear()
            await self.reconcile(KEY)
            self.be_ready()

    def be_ready(self) -> None:
        """As many Ready pods as every StatefulSet wants, its controller having caught up."""
        for (kind, name), found in list(self.kube.objects.items()):
            if kind != "StatefulSet":
                continue
            found["status"] = {"observedGeneration": 99, "currentRevision": "r", "updateRevision": "r"}
            found["metadata"]["ownerReferences"] = [{"controller": True, "uid": "pool", "kind": "P", "name": "kimi"}]
            self.bump(found)
            self.store.put_statefulset(found)
            for ordinal in range(found["spec"].get("replicas", 0)):
                self.store.put_pod(self.pod(found, name, ordinal))

    def pod(self, owner: Json, name: str, ordinal: int) -> Json:
        existing = self.kube.objects.get(("Pod", f"{name}-{ordinal}"))
        if existing is not None:
            return existing
        metadata = {
            "name": f"{name}-{ordinal}",
            "namespace": "serving",
            "uid": f"{name}-{ordinal}",
            "labels": {**owner["metadata"]["labels"], "controller-revision-hash": "r"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"controller": True, "uid": owner["metadata"]["uid"], "kind": "S", "name": name}],
        }
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"conditions": [ready], "podIP": "10.0.0.1"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
        return self.kube.put(pod) | {"metadata": {**metadata, "resourceVersion": "1"}}

    def bump(self, manifest: Json) -> None:
        manifest["metadata"]["resourceVersion"] = str(int(manifest["metadata"]["resourceVersion"]) + 1_000)

    async def live(self, minutes: float) -> None:
        """Tick as in life, and reconcile whenever a tick asks for it."""
        for _ in range(int(minutes * 60 / INTERVAL_S)):
            await self.autoscaler.tick(KEY)
            if self.asked:
                self.asked.clear()
                await self.reconcile(KEY)
                self.be_ready()
                await self.reconcile(KEY)  # as the watch of those pods asks for
            await asyncio.sleep(INTERVAL_S)


def engines(*in_flight: int) -> Reading:
    replicas = {
        f"kimi-b200-{ordinal}": ReplicaReading(
            in_flight=count, queued=0, kv_used_tokens=min(900, 100 * count), kv_total_tokens=1000, idle=count == 0
        )
        for ordinal, count in enumerate(in_flight)
    }
    return Reading(in_flight=float(sum(in_flight)), replicas=replicas, measured=replicas)


def writes(operator: Operator) -> int:
    return len(operator.kube.calls)


def test_a_pool_at_rest_is_read_again_and_again_and_never_written(in_virtual_time):
    async def scenario():
        operator = Operator()
        await operator.settle()
        operator.reading = engines(0)
        await operator.live(minutes=60)
        before = writes(operator)
        await operator.live(minutes=240)
        assert writes(operator) == before
        await operator.reconcile(KEY)
        assert writes(operator) == before, "nor does a full listing write it"
        assert operator.status["load"] == {"runningRequests": 0, "kvUtilizationPercent": 0}

    in_virtual_time(scenario())


def test_a_busy_pool_whose_size_stays_is_written_once_a_minute_at_most(in_virtual_time):
    async def scenario():
        operator = Operator()
        await operator.settle()
        operator.reading = engines(3)
        await operator.live(minutes=5)
        before = writes(operator)
        minutes = 30
        for minute in range(minutes * 4):
            operator.reading = engines(2 + minute % 2)
            await operator.live(minutes=0.25)
        assert writes(operator) - before <= minutes
        assert {call[:2] for call in operator.kube.calls[before:]} == {("patch", "InferencePool")}

    in_virtual_time(scenario())


def test_load_scales_up_and_status_and_events_tell_why(in_virtual_time):
    async def scenario():
        operator = Operator()
        await operator.settle()
        operator.reading = engines(2)
        await operator.live(minutes=1)
        operator.reading = engines(12)
        await operator.live(minutes=2)
        assert operator.kube.objects["StatefulSet", "kimi-b200"]["spec"]["replicas"] == 4
        scaling = operator.status["autoscaling"]
        assert scaling["desired"] == 4
        assert scaling["history"][0]["to"] == 4
        assert (scaling["history"][-1]["from"], scaling["history"][-1]["reason"]) == (1, "LoadAboveTarget")
        assert operator.status["summary"]["ready"] == "4/4"
        assert "ScaledUp" in operator.events.reasons

    in_virtual_time(scenario())


def test_what_goes_from_a_map_is_gone_after_the_write(in_virtual_time):
    async def scenario():
        operator = Operator()
        await operator.settle()
        operator.reading = engines(2)
        await operator.live(minutes=2)
        assert operator.status["load"]["kvUtilizationPercent"] == 20
        operator.reading = Reading(problems=("Replica kimi-b200-0 is silent.",))
        await operator.live(minutes=2)
        assert "load" not in operator.status
        last = copy.deepcopy(operator.status)
        before = writes(operator)
        await operator.reconcile(KEY)
        assert (operator.status, writes(operator)) == (last, before), "no write asks for the next"
        conditions = {c["type"]: c for c in operator.status["conditions"]}
        assert conditions["ScalingActive"]["reason"] == "ReplicasUnreadable"
        assert "kimi-b200-0 is silent" in conditions["ScalingActive"]["message"]

    in_virtual_time(scenario())


def test_an_unhealthy_replica_is_told_once_and_stands_in_available(in_virtual_time):
    async def scenario():
        operator = Operator(replicas=3, autoscaling=None)
        await operator.settle()
        engines = operator.engines.engines
        for ordinal in range(3):
            pod = observed_pod(ordinal)
            engines[f"kimi-b200-{ordinal}"] = Engine(pod, accept_length=1.02 if ordinal == 1 else 3.5)
        for _ in range(20):
            await asyncio.sleep(60)
            for engine in engines.values():
                engine.live(60)
            await operator.health.look(KEY)
            if operator.asked:
                operator.asked.clear()
                await operator.reconcile(KEY)
        words = "kimi-b200-1 is unhealthy: its accept length was 1.02 over the last 300 s (3,000 verify calls)."
        assert operator.events.messages["ReplicaUnhealthy"] == [words]
        (drain,) = operator.events.messages["DrainStarted"]
        assert drain.startswith("kimi-b200-1: its accept length was 1.02")
        conditions = {c["type"]: c for c in operator.status["conditions"]}
        assert conditions["Available"]["message"] == f"At least one replica is ready. {words}"
        before = writes(operator)
        await operator.reconcile(KEY)
        assert writes(operator) == before
        operator.health.forget(KEY)  # as a new operator would begin
        await operator.reconcile(KEY)
        assert writes(operator) == before, "it goes on, and is no news"
        assert operator.events.messages["ReplicaUnhealthy"] == [words]

    in_virtual_time(scenario())


def test_a_pool_is_not_taken_for_gone_when_what_a_child_refers_to_is_not_found(in_virtual_time, caplog):
    async def scenario():
        operator = Operator(router={"enabled": True})
        binding = ("apply", "RoleBinding", "kimi-router")
        operator.kube.failures[binding] = NotFound('roles "kimi-router" not found', verb="apply", kind="Role", code=404)
        assert await operator.reconcile(KEY) == Retry()
        assert operator.store.observed(KEY, {}).children, "what is known of it is kept"
        assert 'roles "kimi-router" not found' in caplog.text
        operator.kube.failures.clear()
        await operator.reconcile(KEY)
        assert {("RoleBinding", "kimi-router"), ("Deployment", "kimi-router")} <= operator.kube.objects.keys()

    in_virtual_time(scenario())
