"""One pool, from what is to what should be: observe, plan, apply, report.

Level-triggered and idempotent: it may run at any time, any number of times. Not here: when it runs (`queue`,
`handlers`, `resync`), what to do (`plan`), how (`execute`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from sglpool.api.base import Manifest
from sglpool.api.pool import Pool, parse_pool
from sglpool.catalog import Catalog
from sglpool.controller.autoscaler import Autoscaler
from sglpool.controller.collect import Collector
from sglpool.controller.execute import Executor
from sglpool.controller.health import HealthWatch
from sglpool.controller.metrics import Metrics
from sglpool.controller.queue import Done, RequeueAfter, Retry
from sglpool.controller.queue import Outcome as QueueOutcome
from sglpool.controller.refusals import RefusalReader
from sglpool.controller.store import PoolKey, Store
from sglpool.controller.story import notes_of
from sglpool.kube import EventRecorder, Forbidden, KubeError, KubePort, NotFound
from sglpool.kube.resources import POOLS
from sglpool.plan import Observed, Step, make_plan
from sglpool.plan.problems import deadline_s
from sglpool.plan.status import make_status
from sglpool.sizing.pools import size_pool

_LOG = logging.getLogger(__name__)

BLOCKED_RETRY_S = 60.0
"""How soon a blocked pool is tried again by itself; its cure is often outside the pool (RBAC, quota, a name)."""

MAX_PASSES = 3
"""Plans made in one reconcile when the first meets something that the store did not know."""


class Reconciler:
    """Reconciles pools.

    Args:
        kube: The API server.
        store: Views of the children.
        catalog: Known models and GPU types.
        node_memory_bytes: Allocatable memory by GPU type, kept up to date by the resync.
        collector: Deletes ConfigMaps that nobody needs.
        autoscaler: Knows the load of pools, and what size it asks for.
        health: Knows which replicas do badly.
        events: Where warnings are posted.
        metrics: Figures of the operator.
        wall_clock_s: Unix time.
        clock: Monotonic seconds.
        router_image: Image of routers whose pool names none.
    """

    def __init__(
        self,
        *,
        kube: KubePort,
        store: Store,
        catalog: Catalog,
        node_memory_bytes: Mapping[str, int],
        collector: Collector,
        autoscaler: Autoscaler,
        health: HealthWatch,
        events: EventRecorder,
        metrics: Metrics,
        wall_clock_s: Callable[[], float],
        clock: Callable[[], float],
        router_image: str = "",
    ) -> None:
        self._kube = kube
        self._store = store
        self._catalog = catalog
        self._node_memory_bytes = node_memory_bytes
        self._collector = collector
        self._autoscaler = autoscaler
        self._health = health
        self._events = events
        self._metrics = metrics
        self._wall_clock_s = wall_clock_s
        self._clock = clock
        self._router_image = router_image
        self._executor = Executor(kube, store)
        self._refusals = RefusalReader(kube, clock)

    async def __call__(self, key: PoolKey) -> QueueOutcome:
        """Reconcile one pool; the queue's handler."""
        begin = self._clock()
        try:
            outcome = await self._reconcile(key)
        except NotFound:
            # The pool or its whole namespace went away meanwhile.
            self._forget(key)
            outcome = Done()
        except Forbidden as error:
            _LOG.error("pool=%s/%s %s", *key, error)
            outcome = RequeueAfter(BLOCKED_RETRY_S)
        except KubeError as error:
            _LOG.warning("pool=%s/%s %s; trying again", *key, error)
            outcome = Retry()
        self._metrics.observe_reconcile(type(outcome).__name__, self._clock() - begin)
        return outcome

    async def _reconcile(self, key: PoolKey) -> QueueOutcome:
        namespace, name = key
        manifest = await self._kube.get(POOLS, namespace=namespace, name=name)
        try:
            pool = parse_pool(manifest, router_image=self._router_image)
        except ValidationError as error:
            _LOG.error("pool=%s/%s its spec does not fit this operator: %s", namespace, name, error)
            return RequeueAfter(BLOCKED_RETRY_S)
        if pool.deleting:
            self._forget(key)
            return Done()
        return await self._bring_forward(pool, manifest)

    async def _bring_forward(self, pool: Pool, manifest: Manifest) -> QueueOutcome:
        key = (pool.namespace, pool.name)
        done: list[Step] = []
        self._health.follow(pool)
        for _ in range(MAX_PASSES):
            observed = self._store.observed(key, self._refusals.known(key))
            sized = size_pool(
                pool,
                self._catalog,
                node_memory_bytes=self._node_memory_bytes,
                hicache_bytes={s.gpu_type: s.hicache_bytes for s in observed.statefulsets if s.hicache_bytes},
            )
            self._autoscaler.follow(pool, sized, observed)
            view, now_s = self._autoscaler.view(key), self._wall_clock_s()
            plan = make_plan(
                pool,
                sized,
                observed,
                wanted=view.wanted,
                loads=view.loads,
                now_s=now_s,
                unhealthy=self._health.view(key).unhealthy,
            )
            outcome = await self._executor.run(pool, plan)
            done += outcome.done
            self._metrics.observe_steps(pool, outcome.done, observed, view.loads)
            if not outcome.look_again:
                break
        refusals, look_again_s = await self._refusals.read(pool, self._store.observed(key, {}))
        observed = self._store.observed(key, refusals)
        # Once more: with what the plan marked, its load is read more often.
        self._autoscaler.follow(pool, sized, observed)
        now_s = self._wall_clock_s()
        status = make_status(
            pool,
            sized,
            observed,
            desired=plan.desired,
            blockers=outcome.blockers,
            now_s=now_s,
            told=view.told,
            unhealthy=[finding.sentence for finding in self._health.view(key).findings],
            kv_tokens=self._health.kv_tokens(key),
        )
        for finding in self._health.news(key):
            self._events.record(
                manifest,
                reason="ReplicaUnhealthy",
                message=finding.sentence,
                action="Replace",
                event_type="Warning",
            )
        for note in notes_of(pool.status, status, done, view.loads):
            self._events.record(manifest, reason=note.reason, message=note.message, action=note.action)
        changes = [*outcome.changes, *await self._report(pool, manifest, status)]
        if not plan.steps:
            changes += await self._collector.run(pool)
        if changes:
            _LOG.info("pool=%s changes=%s", pool.key, changes)
        if outcome.look_again:
            # What was not found may be what a child refers to. Only reading the pool again says whether it is gone.
            if outcome.transient is not None:
                _LOG.warning("pool=%s %s; trying again", pool.key, outcome.transient)
            return Retry()
        if outcome.transient is not None:
            raise outcome.transient
        waits = [look_again_s, plan.look_again_s, BLOCKED_RETRY_S if outcome.blockers else None]
        return _next_look(pool, observed, waits, now_s=now_s)

    async def _report(self, pool: Pool, manifest: Manifest, status: Manifest) -> list[str]:
        """Write the status if it differs, and say aloud what went wrong anew."""
        self._metrics.observe_pool(pool, status)
        if pool.status == status:
            return []
        patch = _patch(pool.status, status)
        await self._kube.patch_status(POOLS, namespace=pool.namespace, name=pool.name, status=patch)
        before = _ready(pool.status).get("reason", "Pending")
        ready = _ready(status)
        if ready["reason"] == before:
            return ["status"]
        warn = ready["reason"] not in _CALM
        # That a new pool starts as asked is no news: an Event for each would be one write in seven of a large burst.
        if warn or before != "Pending":
            self._events.record(
                manifest,
                reason=ready["reason"],
                message=ready["message"],
                action="Reconcile",
                event_type="Warning" if warn else "Normal",
            )
        return [f"Ready={ready['status']} {ready['reason']}"]

    def _forget(self, key: PoolKey) -> None:
        self._refusals.forget(key)
        self._autoscaler.forget(key)
        self._health.forget(key)
        self._store.forget_pool(key)
        self._metrics.forget_pool(key)


def _patch(stored: Manifest, wanted: Manifest) -> Manifest:
    """A JSON merge patch that leaves exactly what is wanted: maps merge, so what goes must be said."""
    patch: Manifest = {field: None for field in stored.keys() - wanted.keys()}
    for field, value in wanted.items():
        before = stored.get(field)
        patch[field] = _patch(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return patch


_CALM = frozenset(
    {
        "Pending",
        "AllReplicasReady",
        "Parked",
        "ReplicasStarting",
        "RollingOut",
        "RouterStarting",
        "GateRunning",
        "RolloutPaused",
        "RolloutAborted",
    }
)
"""Reasons of condition Ready that need nobody's attention."""


def _ready(status: Mapping[str, Any]) -> Manifest:
    return next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})


def _next_look(pool: Pool, observed: Observed, waits: Sequence[float | None], *, now_s: float) -> QueueOutcome:
    """When time alone can change the answer: a deadline passes, Events arrive, a permission is granted."""
    waits = [*waits, deadline_s(pool, observed.pods, now_s=now_s)]
    due = min((wait for wait in waits if wait is not None), default=None)
    return Done() if due is None else RequeueAfter(due)
