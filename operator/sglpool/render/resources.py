"""Requests and limits of the containers.

GPUs come from the tensor-parallel size, memory from sizing, CPU from a constant; the user's values replace them key
by key. No memory limit by default: SGLang's start-up check wants far more room under a limit than it uses.
"""

from __future__ import annotations

from sglpool.api.base import Manifest
from sglpool.api.engine import GPU_RESOURCE
from sglpool.api.quantity import amount
from sglpool.render.quantities import binary_quantity
from sglpool.render.replica import Replica

CPUS_PER_GPU = 8
"""CPU request per GPU. A rank's scheduler, its share of tokenizer, detokenizer and HTTP server, and the loader's
threads keep a handful of cores busy; the smallest 8-GPU nodes have 112 cores, so two TP4 replicas leave 48."""

WEIGHTS_CPUS = 2
WEIGHTS_MEMORY_BYTES = 2 * 2**30
"""A download keeps a few buffers; what it writes is page cache."""


def engine_resources(replica: Replica) -> Manifest:
    """Resources of the engine container."""
    gpus = {GPU_RESOURCE: str(replica.gpus_per_pod)}
    given = replica.pool.spec.template.resources
    derived = {
        "cpu": str(CPUS_PER_GPU * replica.gpus_per_pod),
        "memory": binary_quantity(replica.fit.host_memory_request_bytes),
    }
    requests = {name: _within(value, given.limits.get(name)) for name, value in derived.items()}
    return {
        "requests": requests | _texts(given.requests) | gpus,
        "limits": _texts(given.limits) | gpus,
    }


def weights_resources() -> Manifest:
    """Resources of the weights container; quotas refuse pods whose containers name none."""
    return {"requests": {"cpu": str(WEIGHTS_CPUS), "memory": binary_quantity(WEIGHTS_MEMORY_BYTES)}}


def _texts(amounts: dict[str, int | str]) -> dict[str, str]:
    return {name: str(value) for name, value in amounts.items()}


def _within(request: str, limit: int | str | None) -> str:
    """A derived request, cut to the user's limit: the API server refuses a request above it."""
    if limit is None:
        return request
    wanted, most = amount(request), amount(limit)
    return str(limit) if wanted is not None and most is not None and most < wanted else request
