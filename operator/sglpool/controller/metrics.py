"""The operator's own metrics, with controller-runtime's names where it has one.

Not here: the HTTP endpoint (`http`).
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sglpool.api.base import Manifest
from sglpool.api.pool import Pool

_CONDITIONS = ("Ready", "Feasible", "Scheduled", "Stalled")


class Metrics:
    """All figures of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sglpool_api_requests",
            "Requests to the API server by verb, resource and status code; 0 means no answer.",
            ("verb", "resource", "code"),
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
        self.condition = Gauge(
            "sglpool_pool_condition",
            "Conditions of each pool: 1 for True, 0 for False, -1 for Unknown.",
            ("namespace", "pool", "type"),
            registry=self.registry,
        )
        self.replicas = Gauge(
            "sglpool_pool_replicas",
            "Replicas of each pool by state: wanted, ready.",
            ("namespace", "pool", "state"),
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

    def observe_signals(self, key: tuple[str, str], *, missing: int, age_s: float) -> None:
        """Record how good the last reading of a pool was."""
        self.missing_samples.labels(*key).set(missing)
        self.signal_age.labels(*key).set(age_s)

    def observe_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count one request to the API server."""
        del seconds
        self.requests.labels(verb, resource, str(code)).inc()

    def observe_reconcile(self, result: str, seconds: float) -> None:
        """Record one reconcile."""
        self.reconcile.labels(result).observe(seconds)

    def observe_pool(self, pool: Pool, status: Manifest) -> None:
        """Record what the status of a pool says."""
        stored = {c["type"]: c["status"] for c in status["conditions"]}
        for kind in _CONDITIONS:
            value = {"True": 1, "False": 0, "Unknown": -1}[stored.get(kind, "False")]
            self.condition.labels(pool.namespace, pool.name, kind).set(value)
        wanted = sum(gpu["desired"] for gpu in status["gpus"])
        self.replicas.labels(pool.namespace, pool.name, "wanted").set(wanted)
        self.replicas.labels(pool.namespace, pool.name, "ready").set(status["readyReplicas"])

    def forget_pool(self, key: tuple[str, str]) -> None:
        """Drop the series of a pool that is gone."""
        own = {"namespace": key[0], "pool": key[1]}
        self.condition.remove_by_labels(own)
        self.replicas.remove_by_labels(own)
        self.missing_samples.remove_by_labels(own)
        self.signal_age.remove_by_labels(own)
