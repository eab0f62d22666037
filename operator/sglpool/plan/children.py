"""Shared children and ConfigMaps: which exist as they should, and which nobody needs any more.

A child carries the hash of what was rendered. A live object that differs from our rendering of the same hash was
changed by hand and is put right; one with another hash was rendered by another sglpool version and is left alone.
"""

from collections.abc import Iterable, Mapping, Sequence

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.plan.observed import controller_uid
from sglpool.render import children_hash, router_children, shared_children
from sglpool.sizing.pools import SizedGPU


def expected_children(pool: Pool) -> tuple[Manifest, ...]:
    """Shared children as they are applied, each with its hash."""
    return tuple(_with_hash(child) for child in shared_children(pool))


def expected_router_children(pool: Pool, sized: Sequence[SizedGPU]) -> tuple[Manifest, ...]:
    """Children of the router as they are applied, each with its hash; its ConfigMap goes with its Deployment."""
    return tuple(_with_hash(child) for child in router_children(pool, sized))


def is_healthy(live: Manifest, desired: Manifest) -> bool:
    """Whether a live child is the pool's and was not changed by hand.

    Args:
        live: The object.
        desired: What `expected_children` says of the same kind and name.
    """
    if controller_uid(live["metadata"]) != controller_uid(desired["metadata"]):
        return False
    return _hash_of(live) != _hash_of(desired) or contains(live, desired)


def stale_configmaps(pool: Pool, live: Iterable[Manifest], users: Iterable[Manifest]) -> list[Manifest]:
    """ConfigMaps of the pool's engines and routers that nothing refers to.

    Args:
        pool: The pool.
        live: ConfigMaps that carry its label; metadata is enough.
        users: StatefulSets, Deployments, pods and ControllerRevisions of the pool, whole.
    """
    users = tuple(users)
    prefixes = [names.launch_configmap_name(pool.name, "")]
    if not any(_is_replacing(user) for user in users):
        prefixes.append(names.router_configmap_name(pool.name, ""))
    used = {name for user in users for name in _configmaps_in(user)}
    return [
        m
        for m in live
        if m["metadata"]["name"].startswith(tuple(prefixes)) and m["metadata"]["name"] not in used and is_owned(m, pool)
    ]


def _is_replacing(user: Manifest) -> bool:
    """Whether it is a Deployment that still keeps pods of an old revision: its old ReplicaSet may start one anew."""
    if user.get("kind") != "Deployment":
        return False
    status = user.get("status") or {}
    behind = status.get("observedGeneration", 0) < user["metadata"].get("generation", 0)
    return bool(behind or status.get("replicas", 0) > status.get("updatedReplicas", 0))


def is_owned(manifest: Manifest, pool: Pool) -> bool:
    """Whether the pool is the object's controller; labels can be forged, this cannot."""
    return controller_uid(manifest["metadata"]) == pool.uid


def contains(live: object, desired: object) -> bool:
    """Whether a live object carries everything that we would apply; what others added does not matter."""
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(k in live and contains(live[k], v) for k, v in desired.items())
    if isinstance(desired, list):
        return isinstance(live, list) and all(any(contains(have, want) for have in live) for want in desired)
    return live == desired


def _with_hash(child: Manifest) -> Manifest:
    metadata = child["metadata"]
    annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_RENDER_HASH: children_hash((child,))}
    return {**child, "metadata": {**metadata, "annotations": annotations}}


def _hash_of(child: Manifest) -> str | None:
    found: str | None = (child["metadata"].get("annotations") or {}).get(names.ANNOTATION_RENDER_HASH)
    return found


def _configmaps_in(node: object) -> Iterable[str]:
    """Names of the ConfigMaps that volumes anywhere under an object refer to."""
    if isinstance(node, Mapping):
        config = node.get("configMap")
        if isinstance(config, Mapping) and isinstance(config.get("name"), str):
            yield config["name"]
        for value in node.values():
            yield from _configmaps_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from _configmaps_in(value)
