"""The pools of the operator's benchmark, and everything that each of them comes to, as bytes.

Rendered by the operator's own pure core ahead of a measurement, so that a bare client can write the same objects.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool, parse_pool
from sglpool.catalog import load_catalog
from sglpool.kube.resources import (
    CONFIGMAPS,
    POD_DISRUPTION_BUDGETS,
    POOLS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
    resource_for,
)
from sglpool.plan import CreateStatefulSet, EnsureChild, Observed, make_plan
from sglpool.plan.status import make_status
from sglpool.sizing.pools import size_pool

CHILDREN = (STATEFULSETS, SERVICES, SERVICE_ACCOUNTS, POD_DISRUPTION_BUDGETS, CONFIGMAPS)
"""What one pool of one GPU type has: one object of each."""
NAMESPACE = "bench"
PLACEHOLDER_UID = b"00000000-0000-0000-0000-000000000000"
"""Stands in prepared bodies for the pool's uid, which is known once it was created."""


def pool_manifest(name: str) -> Manifest:
    """A parked pool of the usual kind: one GPU type, a draft model, HiCache.

    It has no router: a thousand of them would be a thousand pods for the controllers, and their objects are the same
    for every pool, parked or not.
    """
    revision = "0" * 39 + "1"
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {
                "name": "kimi-k2.6",
                "profile": "kimi-k2.6-nvfp4",
                "source": {"huggingFace": {"repo": "nvidia/Kimi-K2.6-NVFP4", "revision": revision}},
            },
            "tensorParallelSize": 4,
            "gpus": [{"type": "B200"}],
            "kvCache": {"dtype": "fp8_e4m3", "hiCache": {"size": "480G"}},
            "speculative": {
                "algorithm": "DFLASH",
                "draftModel": {"source": {"huggingFace": {"repo": "nvidia/Kimi-K2.6-DFlash", "revision": revision}}},
            },
            "replicas": 0,
            "router": {"enabled": False},
        },
    }


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that one pool comes to, as bytes that wait for the pool's uid.

    Attributes:
        name: Name of the pool.
        pool: The pool itself.
        children: Path and body of each child.
        status: Body of the one status patch.
    """

    name: str
    pool: bytes
    children: tuple[tuple[str, bytes], ...]
    status: bytes

    @property
    def path(self) -> str:
        """Where the pool lives."""
        return POOLS.path(NAMESPACE, self.name)


def prepare(pool_names: Sequence[str]) -> list[Prepared]:
    """Render pools with the operator's own pure core, ahead of the measurement."""
    return [_prepare(name) for name in pool_names]


def _prepare(name: str) -> Prepared:
    manifest = pool_manifest(name)
    pool = parse_pool(
        {**manifest, "metadata": {**manifest["metadata"], "uid": PLACEHOLDER_UID.decode(), "generation": 1}}
    )
    nothing = Observed(refusals={})
    sized = size_pool(pool, load_catalog(), node_memory_bytes={}, hicache_bytes={})
    plan = make_plan(pool, sized, nothing)
    status = make_status(pool, sized, nothing, desired=plan.desired, blockers=(), now_s=time.time())
    children = []
    for step in plan.steps:
        match step:
            case CreateStatefulSet(manifest=child):
                children.append({**child, "spec": {**child["spec"], "replicas": 0}})
            case EnsureChild(manifest=child):
                children.append(child)
    if len(children) != len(CHILDREN):
        raise RuntimeError(f"a pool has {len(children)} children, the benchmark watches {len(CHILDREN)}")
    return Prepared(
        name,
        _bytes(manifest),
        tuple((_path(pool, child), _bytes(child)) for child in children),
        _bytes({"status": status}),
    )


def _path(pool: Pool, child: Manifest) -> str:
    return resource_for(child).path(pool.namespace, child["metadata"]["name"])


def _bytes(body: Manifest) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
