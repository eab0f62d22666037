"""The router of a pool: which objects it is made of, and the hash of what it was made from.

Envoy moves the bytes, the picker beside it decides where they go. Not here: Envoy's configuration (`envoy`), the pod
(`router_pod`), who may talk to whom (`router_access`), the Valkey of several routers (`router_store`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.render import router_access, router_store
from sglpool.render.hashes import content_hash
from sglpool.render.metadata import child_metadata
from sglpool.render.router_config import restarting_fields, router_files, router_shape, uses_tls
from sglpool.render.router_pod import router_pod_template
from sglpool.render.router_ports import HTTP_PORT
from sglpool.sizing.pools import SizedGPU

PROGRESS_DEADLINE_S = 180
"""A router that is not ready by then will not be by itself: an image, a Secret or a node is missing."""


def has_router(pool: Pool) -> bool:
    """Whether the pool is to have a router."""
    return pool.spec.router.enabled


def endpoint(pool: Pool) -> str:
    """Base URL of the pool's OpenAI API inside the cluster: its router, else the Service of its engines."""
    if not has_router(pool):
        return f"http://{names.engine_name(pool.name)}.{pool.namespace}.svc:{names.ENGINE_PORT}/v1"
    scheme = "https" if uses_tls(pool) else "http"
    return f"{scheme}://{names.router_name(pool.name)}.{pool.namespace}.svc:{HTTP_PORT}/v1"


def router_hash(pool: Pool, sized: Sequence[SizedGPU]) -> str:
    """Hash of what the user chose for the router: a change of it replaces router pods, nothing else does."""
    return content_hash(restarting_fields(pool, sized))


def router_children(pool: Pool, sized: Sequence[SizedGPU]) -> tuple[Manifest, ...]:
    """Every object of the router but its ConfigMap, in the order in which to apply them; none without a router."""
    if not has_router(pool):
        return ()
    chosen = router_hash(pool, sized)
    return (
        *router_access.access(pool),
        *router_store.store(pool, chosen),
        router_deployment(pool, sized, chosen),
    )


def router_configmap(pool: Pool, sized: Sequence[SizedGPU]) -> Manifest:
    """The immutable ConfigMap of this revision of the router: Envoy's bootstrap and the picker's settings."""
    data = router_files(pool, sized)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(
            pool,
            name=names.router_configmap_name(pool.name, content_hash(data)),
            labels=names.child_labels(pool.name, names.COMPONENT_ROUTER),
        ),
        "immutable": True,
        "data": data,
    }


def router_deployment(pool: Pool, sized: Sequence[SizedGPU], chosen: str) -> Manifest:
    """The Deployment of the router.

    Args:
        pool: The pool.
        sized: Its GPU types.
        chosen: `router_hash` of both.
    """
    configmap_name = router_configmap(pool, sized)["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(
            pool,
            name=names.router_name(pool.name),
            labels=names.child_labels(pool.name, names.COMPONENT_ROUTER),
            annotations={names.ANNOTATION_SPEC_HASH: chosen},
        ),
        "spec": {
            "replicas": pool.spec.router.replicas,
            # An old pod ends its streams in peace while the new one serves already.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
            # The pool's spec is the history; old ReplicaSets would only keep old ConfigMaps in use.
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": names.component_selector(pool.name, names.COMPONENT_ROUTER)},
            "template": router_pod_template(pool, router_shape(pool, sized), configmap_name=configmap_name),
        },
    }
