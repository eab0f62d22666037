"""Pools for tests: the Kimi sample in short, with changes."""

from __future__ import annotations

import copy
from typing import Any

from sglpool.api.pool import Pool
from sglpool.api.validate import load_pool
from sglpool.catalog import load_catalog
from sglpool.sizing.pools import SizedGPU, size_pool

Json = dict[str, Any]

COMMIT = "0" * 39 + "1"

KIMI: Json = {
    "apiVersion": "sglpool.io/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": "kimi", "namespace": "serving"},
    "spec": {
        "model": {
            "name": "kimi-k2.6",
            "profile": "kimi-k2.6-nvfp4",
            "source": {"huggingFace": {"repo": "nvidia/Kimi-K2.6-NVFP4", "revision": COMMIT}},
        },
        "tensorParallelSize": 4,
        "gpus": [{"type": "B200"}, {"type": "B300"}],
        "kvCache": {"hiCache": {"size": "480G"}},
        "speculative": {
            "algorithm": "DFLASH",
            "draftModel": {"source": {"huggingFace": {"repo": "nvidia/Kimi-K2.6-DFlash", "revision": COMMIT}}},
        },
        "replicas": 2,
        # Most tests are about engines; those of the router switch it on.
        "router": {"enabled": False},
    },
}

ROUTED: Json = {"router": {"enabled": True}}
"""The change that gives the pool its router."""


def manifest(changes: Json | None = None, *, metadata: Json | None = None) -> Json:
    """The Kimi pool with changes merged into its spec; a change to None removes the field."""
    pool = copy.deepcopy(KIMI)
    pool["metadata"].update(metadata or {})
    _merge(pool["spec"], copy.deepcopy(changes or {}))
    return pool


def pool(changes: Json | None = None, *, metadata: Json | None = None) -> Pool:
    """The same, parsed as strictly as the API server does."""
    return load_pool(manifest(changes, metadata=metadata))


def size(of: Pool, *, hicache_bytes: dict[str, int] | None = None) -> tuple[SizedGPU, ...]:
    """Its GPU types, sized with the packaged catalogue."""
    return size_pool(of, load_catalog(), node_memory_bytes={}, hicache_bytes=hicache_bytes or {})


def _merge(into: Json, changes: Json) -> None:
    for key, value in changes.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
