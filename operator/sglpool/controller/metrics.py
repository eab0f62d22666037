"""The operator's own metrics, with controller-runtime's names where it has one.

Every one is described in `docs/metrics.md`. Not here: the HTTP endpoint (`http`), what the case is with pools
(`poolfigures`).
"""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

from sglpool import __version__
from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.controller.poolfigures import PoolFigures
from sglpool.kube.rights import Right
from sglpool.plan import DeleteObject, MarkPod, Observed, ObservedPod, ReplicaLoad, Scale, Step
from sglpool.plan.drain import IDLE_READS


class Metrics:
    """All figures of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.pools = PoolFigures()
        self.registry.register(self.pools)
        build = Gauge("sglpool_build_info", "Version of the operator: always 1.", ("version",), registry=self.registry)
        build.labels(__version__).set(1)
        self.requests = Counter(
            "sglpool_api_requests",
            "Requests to the API server by verb, resource and status code; 0 means no answer.",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self.refused = 0
        """Requests that the API server forbade."""
        self.missing_permissions = Gauge(
            "sglpool_missing_permissions",
            "Rights that the operator's account lacks, 1 each; no series when it has them all.",
            ("verb", "group", "resource", "namespace"),
            registry=self.registry,
        )
        self.missing_fields = Gauge(
            "sglpool_crd_missing_fields",
            "Fields that this operator knows and the served CRD, which is older, drops.",
            registry=self.registry,
        )
        self.leading = Gauge(
            "sglpool_leader",
            "1: this replica works. 0: it waits for permissions or for the Lease.",
            registry=self.registry,
        )
        self.queue_wait = Histogram(
            "workqueue_queue_duration_seconds",
            "Time that a pool waits in the queue before it is reconciled.",
            buckets=(0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120),
            registry=self.registry,
        )
        self.depth = Gauge("workqueue_depth", "Pools that wait for a reconcile.", registry=self.registry)
        self.adds = Gauge("workqueue_adds_total", "Pools put in line so far.", registry=self.registry)
        self.retries = Gauge("workqueue_retries_total", "Reconciles sent to back off so far.", registry=self.registry)
        self.reconcile = Histogram(
            "sglpool_reconcile_seconds",
            "Duration of a reconcile by its outcome.",
            ("result",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
            registry=self.registry,
        )
        self.resync = Gauge(
            "sglpool_last_resync_timestamp_seconds", "Unix time of the last full listing.", registry=self.registry
        )
        self.decisions = Counter(
            "sglpool_autoscaler_decisions",
            "Decisions of the autoscaler by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.tick = Histogram(
            "sglpool_autoscaler_tick_seconds",
            "Duration of a look at one pool's load, most of it spent waiting for answers.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 2.5, 5),
            registry=self.registry,
        )
        self.skipped_ticks = Counter(
            "sglpool_autoscaler_skipped_ticks",
            "Looks that were due before the one before had ended.",
            registry=self.registry,
        )
        self.missing_samples = Gauge(
            "sglpool_pool_missing_samples",
            "Ready replicas and routers of each pool that could not be read.",
            ("namespace", "pool"),
            registry=self.registry,
        )
        self.signal_age = Gauge(
            "sglpool_pool_signal_age_seconds",
            "Age of the oldest engine figure of each pool when it was read.",
            ("namespace", "pool"),
            registry=self.registry,
        )
        self.verdicts = Counter(
            "sglpool_unhealthy_replicas",
            "Replicas found unhealthy although their probes passed, by ailment.",
            ("ailment",),
            registry=self.registry,
        )
        self.drains = self._of_pools("drains", "Replicas that began to be emptied.")
        self.removed = self._of_pools(
            "removed_replicas",
            "Ready replicas that were taken away: empty, or late, with work left or nothing known of it.",
            "end",
        )
        self.cut = self._of_pools("cut_requests", "Requests that were under way on replicas that were taken away.")
        self.lost = self._of_pools("lost_replicas", "Replicas whose node was gone or not ready any more.", "gpu")

    def _of_pools(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sglpool_pool_{name}", text, ("namespace", "pool", *labels), registry=self.registry)

    def observe_signals(self, key: tuple[str, str], *, missing: int, age_s: float) -> None:
        """Record how good the last reading of a pool was."""
        self.missing_samples.labels(*key).set(missing)
        self.signal_age.labels(*key).set(age_s)

    def observe_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count one request to the API server."""
        del seconds
        self.requests.labels(verb, resource, str(code)).inc()
        self.refused += code == 403

    def observe_missing(self, rights: Sequence[Right]) -> None:
        """Record which rights are missing now."""
        self.missing_permissions.clear()
        for right in rights:
            place = (right.verb, right.resource.group, right.path, right.namespace or "")
            self.missing_permissions.labels(*place).set(1)

    def observe_reconcile(self, result: str, seconds: float) -> None:
        """Record one reconcile."""
        self.reconcile.labels(result).observe(seconds)

    def observe_pool(self, pool: Pool, status: Manifest) -> None:
        """Record what the status of a pool says."""
        self.pools.put(pool, status)
        for family in (self.drains, self.cut):
            family.labels(pool.namespace, pool.name)
        for end in ("empty", "late"):
            self.removed.labels(pool.namespace, pool.name, end)
        for gpu in pool.spec.gpus:
            self.lost.labels(pool.namespace, pool.name, gpu.type)

    def observe_steps(
        self, pool: Pool, done: Sequence[Step], observed: Observed, loads: Mapping[str, ReplicaLoad]
    ) -> None:
        """Count what was done to replicas.

        Args:
            pool: The pool.
            done: Steps that were carried out.
            observed: The objects that they were planned from.
            loads: What replicas had to do, by uid.
        """
        key = (pool.namespace, pool.name)
        by_name = {pod.name: pod for pod in observed.pods}
        for step in done:
            if isinstance(step, MarkPod) and step.annotations.get(names.ANNOTATION_DRAINING) is not None:
                self.drains.labels(*key).inc()
            if isinstance(step, DeleteObject) and step.kind == "Pod" and step.name in by_name:
                pod = by_name[step.name]
                if _is_lost(pod, observed):
                    self.lost.labels(*key, pod.gpu_type).inc()
            if isinstance(step, Scale | DeleteObject) and step.drained is not None:
                self.cut.labels(*key).inc(step.drained.requests)
                for pod in (by_name[name] for name in step.drained.pods if name in by_name):
                    if pod.ready:
                        self.removed.labels(*key, _end(loads.get(pod.uid))).inc()

    def forget_pool(self, key: tuple[str, str]) -> None:
        """Drop the series of a pool that is gone."""
        own = {"namespace": key[0], "pool": key[1]}
        self.pools.forget(key)
        for family in (self.drains, self.removed, self.cut, self.lost):
            family.remove_by_labels(own)
        self.missing_samples.remove_by_labels(own)
        self.signal_age.remove_by_labels(own)


def _is_lost(pod: ObservedPod, observed: Observed) -> bool:
    node = (observed.nodes or {}).get(pod.node)
    return node is not None and not node.ready


def _end(load: ReplicaLoad | None) -> str:
    """How a ready replica was when it was taken away."""
    return "empty" if load is not None and load.fresh and load.idle_reads >= IDLE_READS else "late"
