"""Deletes ConfigMaps that no StatefulSet, Deployment, pod or ControllerRevision refers to any more.

It runs as the last part of a pool's own reconcile, and only when nothing else is due: nobody else works on the pool
then, so a ConfigMap that a revert is about to use again cannot be taken from under it. Not here: which pools may have
some (`resync`).
"""

from collections.abc import Iterable

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.controller.store import PoolKey
from sglpool.kube import KubePort
from sglpool.kube.resources import CONFIGMAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, STATEFULSETS
from sglpool.plan.children import stale_configmaps


class Collector:
    """Remembers which pools to look at, and looks.

    Args:
        kube: The API server.
    """

    def __init__(self, kube: KubePort) -> None:
        self._kube = kube
        self._due: set[PoolKey] = set()

    def mark(self, keys: Iterable[PoolKey]) -> None:
        """Look at these pools at their next reconcile, and at no others."""
        self._due = set(keys)

    async def run(self, pool: Pool) -> list[str]:
        """Delete what is stale, if the pool is due; a phrase for the log per ConfigMap.

        Raises:
            KubeError: A request failed; the next full listing marks the pool again.
        """
        key = (pool.namespace, pool.name)
        if key not in self._due:
            return []
        self._due.discard(key)
        selector = ",".join(f"{k}={v}" for k, v in names.pool_labels(pool.name).items())
        maps = [
            item
            async for page in self._kube.pages(
                CONFIGMAPS, namespace=pool.namespace, label_selector=selector, metadata_only=True
            )
            for item in page
        ]
        users: list[Manifest] = []
        for resource in (STATEFULSETS, DEPLOYMENTS, PODS, CONTROLLER_REVISIONS):
            users += await self._kube.list(resource, namespace=pool.namespace, label_selector=selector)
        deleted = []
        for stale in stale_configmaps(pool, maps, users):
            metadata = stale["metadata"]
            await self._kube.delete(CONFIGMAPS, namespace=pool.namespace, name=metadata["name"], uid=metadata["uid"])
            deleted.append(f"Delete ConfigMap {metadata['name']} (no revision uses it)")
        return deleted
