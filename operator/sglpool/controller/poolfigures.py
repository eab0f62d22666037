"""What is the case with every pool, as gauges: conditions, replicas, GPUs, and what the autoscaler decided on.

Each pool's figures are replaced as a whole whenever its status is made, so that none outlives what it speaks of. Not
here: what happens to pools, which is counted (`metrics`).
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sglpool.api.base import Manifest
from sglpool.api.conditions import ABNORMAL, TABLE
from sglpool.api.pool import Pool

EXPLAINED = ("Ready", "ScalingActive")
"""Conditions whose reason is shown too: the others' follow from them, and every reason is a series."""

_VALUES = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
_FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sglpool_pool_condition": ("Conditions of each pool: 1 for True, 0 for False, -1 for Unknown.", ("type",)),
    "sglpool_pool_reason": ("The reason that a condition of each pool has now: always 1.", ("type", "reason")),
    "sglpool_pool_replicas": (
        "Replicas of each pool by GPU type and state: wanted, existing, ready, updated.",
        ("gpu", "state"),
    ),
    "sglpool_pool_gpus": ("GPUs of the ready replicas of each pool.", ("gpu",)),
    "sglpool_pool_autoscaler": (
        "Figures that the autoscaler decided on, rounded, by their names in status.autoscaling.inputs.",
        ("figure",),
    ),
}

Sample = tuple[str, tuple[str, ...], float]
"""Name of a family, values of its labels, value."""


class PoolFigures(Collector):
    """Gauges of all pools."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], tuple[Sample, ...]] = {}

    def put(self, pool: Pool, status: Manifest) -> None:
        """Show what the status of a pool says from now on."""
        self._pools[pool.namespace, pool.name] = tuple(_samples(pool, status))

    def forget(self, key: tuple[str, str]) -> None:
        """Show nothing of a pool that is gone."""
        self._pools.pop(key, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing ahead of the first scrape."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families."""
        families = {
            name: GaugeMetricFamily(name, text, labels=("namespace", "pool", *labels))
            for name, (text, labels) in _FAMILIES.items()
        }
        for key, samples in self._pools.items():
            for name, labels, value in samples:
                families[name].add_metric((*key, *labels), value)
        yield from families.values()


def _samples(pool: Pool, status: Manifest) -> Iterator[Sample]:
    stored = {c["type"]: c for c in status["conditions"]}
    for kind in TABLE:
        if kind in stored:
            yield "sglpool_pool_condition", (kind,), _VALUES[stored[kind]["status"]]
        elif kind in ABNORMAL:
            yield "sglpool_pool_condition", (kind,), 0.0
    for kind in EXPLAINED:
        if kind in stored:
            yield "sglpool_pool_reason", (kind, stored[kind]["reason"]), 1.0
    for gpu in status["gpus"]:
        counts = {"wanted": "desired", "existing": "replicas", "ready": "ready", "updated": "updated"}
        for state, field in counts.items():
            yield "sglpool_pool_replicas", (gpu["type"], state), float(gpu[field])
        yield "sglpool_pool_gpus", (gpu["type"],), float(gpu["ready"] * pool.spec.tensor_parallel_size)
    for name, value in ((status.get("autoscaling") or {}).get("inputs") or {}).items():
        yield "sglpool_pool_autoscaler", (name,), float(value)
