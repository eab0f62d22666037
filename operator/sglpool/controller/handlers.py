"""kopf's part: low-level events that update the store and put a pool's key in line. No handler does work.

Only `on.event` is used: it needs no finalizer, writes nothing on objects, and cannot lose a step. Not here: what
happens to a key (`reconcile`).
"""

from collections.abc import Callable, Coroutine
from typing import Any

import kopf

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.controller.login import login_of
from sglpool.controller.queue import KeyedQueue
from sglpool.controller.store import PoolKey, Store, pool_key

_Handler = Callable[..., Coroutine[None, None, None]]


class PoolFilter:
    """Tells events of a pool that matter from echoes of our own status writes.

    The full resync catches what this leaves out, such as a status edited by hand.
    """

    def __init__(self) -> None:
        self._seen: dict[PoolKey, tuple[object, ...]] = {}

    def matters(self, manifest: Manifest, *, deleted: bool) -> bool:
        """Whether a pool changed in anything but status."""
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if deleted:
            self._seen.pop(key, None)
            return True
        annotations = metadata.get("annotations") or {}
        own = tuple(sorted((k, v) for k, v in annotations.items() if k.startswith(f"{names.GROUP}/")))
        mark = (metadata["uid"], metadata.get("generation"), own, "deletionTimestamp" in metadata)
        if self._seen.get(key) == mark:
            return False
        self._seen[key] = mark
        return True


class _NoDiff(kopf.AnnotationsDiffBaseStorage):
    """Kopf copies every object of every event to find what changed; `on.event` handlers are never told.

    At a thousand pools those copies were a fifth of the operator's CPU.
    """

    def build(self, *, body: Any, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing to compare."""
        del body, extra_fields
        return kopf.BodyEssence()


def build_registry(
    queue: KeyedQueue[PoolKey], store: Store, *, watch_nodes: bool = False, kubeconfig: str | None = None
) -> kopf.OperatorRegistry:
    """A fresh registry with our handlers; there are none at import.

    Args:
        queue: Gets the keys of pools.
        store: Is told what has changed.
        watch_nodes: Whether nodes may be watched.
        kubeconfig: What the command line named, None for the pod's own account or the usual places.
    """
    registry = kopf.OperatorRegistry()
    pools = PoolFilter()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def pool_event(event: Any, **_: Any) -> None:
        manifest = event["object"]
        if pools.matters(manifest, deleted=event["type"] == "DELETED"):
            queue.add((manifest["metadata"]["namespace"], manifest["metadata"]["name"]))

    children = {
        ("apps", "v1", "statefulsets"): store.put_statefulset,
        ("apps", "v1", "deployments"): store.put_deployment,
        ("", "v1", "pods"): store.put_pod,
        ("batch", "v1", "jobs"): store.put_job,
    }
    for resource, put in children.items():
        kopf.on.event(*resource, registry=registry)(_child_handler(queue, store, put))
    if watch_nodes:
        kopf.on.event("", "v1", "nodes", registry=registry)(_node_handler(queue, store))

    kopf.on.login(registry=registry)(login_of(kubeconfig))
    return registry


def _child_handler(queue: KeyedQueue[PoolKey], store: Store, put: Callable[[Manifest], bool]) -> _Handler:
    """Tell the store, and put the pool in line if the planner would see a difference."""

    async def child_event(event: Any, **_: Any) -> None:
        manifest = event["object"]
        if event["type"] == "DELETED":
            store.forget(manifest)
        elif not put(manifest):
            return
        key = pool_key(manifest)
        if key is not None:
            queue.add(key)

    return child_event


def _node_handler(queue: KeyedQueue[PoolKey], store: Store) -> _Handler:
    """Tell the store, and put the pools in line that have pods on the node."""

    async def node_event(event: Any, **_: Any) -> None:
        manifest = event["object"]
        name = manifest["metadata"]["name"]
        if event["type"] == "DELETED":
            store.nodes.forget(name)
        elif not store.nodes.put(manifest):
            return
        for key in store.keys_on(name):
            queue.add(key)

    return node_event


def build_settings() -> kopf.OperatorSettings:
    """How kopf watches: our children only, rotated watches, no peering, nothing posted or persisted."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 290
    settings.watching.chunk_size = 50
    settings.networking.request_timeout = 30
    # The default gives up after a minute of API server restart, and takes the process with it.
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 55, 55)
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{names.GROUP}/finalizer"
    settings.persistence.diffbase_storage = _NoDiff()
    # A worker keeps its object's last event until it has idled for so long; the default is 5 s.
    settings.queueing.idle_timeout = 0.1
    settings.execution.max_workers = 1
    for plural, group in {"statefulsets": "apps", "deployments": "apps", "pods": "", "jobs": "batch"}.items():
        settings.watching.label_selectors[group, "v1", plural] = names.MANAGED_SELECTOR
    return settings
