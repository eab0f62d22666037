"""The full listing: what the watches may have missed, read live every few minutes.

It replaces the store, learns the nodes' memory, finds pools with more ConfigMaps than they need, and puts every pool in
line. Not here: what is done about a pool (`reconcile`).
"""

import asyncio
import contextlib
import json
import logging
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool, parse_pool
from sglpool.api.quantity import parse_bytes
from sglpool.catalog import Catalog
from sglpool.controller.collect import Collector
from sglpool.controller.metrics import Metrics
from sglpool.controller.queue import KeyedQueue
from sglpool.controller.store import PoolKey, Store, pool_key
from sglpool.kube import Forbidden, KubeError, KubePort, Resource
from sglpool.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    POOLS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
)
from sglpool.plan.children import expected_children, expected_router_children, is_healthy
from sglpool.plan.observed import controller_uid
from sglpool.render import has_router
from sglpool.sizing.pools import size_pool

_LOG = logging.getLogger(__name__)

PERIOD_S = 300.0
PAGE_SIZE = 50
"""Objects per page: a StatefulSet is 15 kB of JSON, and a whole listing of a thousand must never be in memory."""

_CHILDREN = (
    SERVICE_ACCOUNTS,
    SERVICES,
    POD_DISRUPTION_BUDGETS,
    ROLES,
    ROLE_BINDINGS,
    NETWORK_POLICIES,
    DEPLOYMENTS,
)


@dataclass(slots=True)
class _Listing:
    """What a full listing found.

    Attributes:
        uids: The uid of every pool.
        expected: What every shared child should be, packed, by pool, kind and name.
        children: Kind and name of the healthy shared children of every pool.
        surplus: Kind and name of children that are a pool's, and that it does not ask for.
        configmaps: Number of ConfigMaps by pool.
        crowded: Pools with more of them than GPU types and router.
    """

    uids: dict[PoolKey, str] = field(default_factory=dict)
    expected: dict[tuple[PoolKey, str, str], bytes] = field(default_factory=dict)
    children: dict[PoolKey, set[tuple[str, str]]] = field(default_factory=dict)
    surplus: dict[PoolKey, set[tuple[str, str]]] = field(default_factory=dict)
    configmaps: Counter[PoolKey] = field(default_factory=Counter)
    crowded: set[PoolKey] = field(default_factory=set)


class Resync:
    """Reads everything, now and then.

    Args:
        kube: The API server.
        namespaces: Namespaces to look at; None for all.
        store: Is replaced.
        queue: Gets every pool.
        catalog: Which node labels mean which GPU type.
        node_memory_bytes: Is filled with the allocatable memory of the smallest node by GPU type.
        collector: Is told which pools may have ConfigMaps that nobody needs.
        metrics: Figures of the operator.
        wall_clock_s: Unix time.
        router_image: Image of routers whose pool names none, as the reconciles have it.
    """

    def __init__(
        self,
        *,
        kube: KubePort,
        namespaces: tuple[str, ...] | None,
        store: Store,
        queue: KeyedQueue[PoolKey],
        catalog: Catalog,
        node_memory_bytes: dict[str, int],
        collector: Collector,
        metrics: Metrics,
        wall_clock_s: Callable[[], float],
        router_image: str,
    ) -> None:
        self._kube = kube
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._store = store
        self._queue = queue
        self._catalog = catalog
        self._node_memory_bytes = node_memory_bytes
        self._collector = collector
        self._metrics = metrics
        self._wall_clock_s = wall_clock_s
        self._router_image = router_image
        self.last_s: float | None = None

    async def run_for_ever(self, *, period_s: float = PERIOD_S) -> None:
        """List every period; a failure is logged and the next period tries again."""
        while True:
            await asyncio.sleep(period_s)
            try:
                await self.run_once()
            except KubeError as error:
                _LOG.warning("resync failed, trying again in %.0f s: %s", period_s, error)

    async def run_once(self) -> None:
        """Read everything live and put every pool in line.

        Raises:
            KubeError: A listing failed; the store is as it was.
        """
        await self._read_nodes()
        mark = self._store.mark()
        views = Store()
        for namespace in self._namespaces:
            async for page in self._pages(STATEFULSETS, namespace):
                for manifest in page:
                    views.put_statefulset(manifest)
            for resource, put in ((PODS, views.put_pod), (JOBS, views.put_job)):
                async for page in self._pages(resource, namespace):
                    for manifest in page:
                        put(manifest)
        found = await self._read_pools(views)
        self._store.replace(views, mark=mark)
        pools = [*found.children]
        self._store.replace_children(found.children, found.surplus)
        self._collector.mark(found.crowded)
        for key in {*pools, *self._store.keys()}:
            self._queue.add(key, fresh=False)
        self.last_s = self._wall_clock_s()
        self._metrics.resync.set(self.last_s)

    async def _read_pools(self, views: Store) -> _Listing:
        """Pools, their healthy children and their ConfigMaps; of whole objects never more than a page is kept."""
        found = _Listing()
        for namespace in self._namespaces:
            async for page in self._pages(CONFIGMAPS, namespace, metadata_only=True):
                found.configmaps.update(key for manifest in page if (key := pool_key(manifest)) is not None)
            async for page in self._kube.pages(POOLS, namespace=namespace, page_size=PAGE_SIZE):
                for pool in self._parsed(page):
                    self._expect(pool, found)
            for resource in _CHILDREN:
                async for page in self._pages(resource, namespace):
                    _judge(page, found)
                    if resource is DEPLOYMENTS:
                        for manifest in page:
                            views.put_deployment(manifest)
            found.expected.clear()
        return found

    def _parsed(self, page: Iterable[Manifest]) -> Iterator[Pool]:
        """The pools of a page; one that does not fit this operator is reported by its reconcile."""
        for manifest in page:
            with contextlib.suppress(ValidationError):
                yield parse_pool(manifest, router_image=self._router_image)

    def _expect(self, pool: Pool, found: _Listing) -> None:
        """Note what a pool's children should be."""
        key = (pool.namespace, pool.name)
        found.uids[key], found.children[key] = pool.uid, set()
        if found.configmaps[key] > len(pool.spec.gpus) + has_router(pool):
            found.crowded.add(key)
        children = [*expected_children(pool)]
        if has_router(pool):
            sized = size_pool(pool, self._catalog, node_memory_bytes=self._node_memory_bytes, hicache_bytes={})
            children += expected_router_children(pool, sized)
        found.expected |= {(key, c["kind"], c["metadata"]["name"]): _pack(c) for c in children}

    async def _read_nodes(self) -> None:
        """What nodes are like, and their memory by GPU type; without the right to read them the catalogue's counts."""
        smallest: dict[str, int] = {}
        if not self._store.nodes.watched:
            # Asking all the same would be a refusal every few minutes, and those raise an alert.
            self._store.nodes.replace(None)
            self._node_memory_bytes.clear()
            return
        seen: set[str] = set()
        try:
            async for page in self._kube.pages(NODES, namespace=None, page_size=PAGE_SIZE):
                for node in page:
                    self._store.nodes.put(node)
                    seen.add(node["metadata"]["name"])
                    labels = node["metadata"].get("labels") or {}
                    memory = ((node.get("status") or {}).get("allocatable") or {}).get("memory")
                    for gpu in self._catalog.gpus:
                        if memory and labels.get(gpu.node_label_key) in gpu.node_label_values:
                            smallest[gpu.name] = min(parse_bytes(memory), smallest.get(gpu.name, 2**63))
        except Forbidden:
            self._store.nodes.replace(None)
            _LOG.info("nodes cannot be read: lost ones go unnoticed, host memory is checked by the catalogue's figures")
        else:
            self._store.nodes.replace(seen)
        self._node_memory_bytes.clear()
        self._node_memory_bytes.update(smallest)

    def _pages(
        self, resource: Resource, namespace: str | None, *, metadata_only: bool = False
    ) -> AsyncIterator[list[Manifest]]:
        return self._kube.pages(
            resource,
            namespace=namespace,
            label_selector=names.MANAGED_SELECTOR,
            metadata_only=metadata_only,
            page_size=PAGE_SIZE,
        )


def _judge(page: Iterable[Manifest], found: _Listing) -> None:
    """Note which children of a page are as they should be, and which of them nobody asks for."""
    for manifest in page:
        key, kind, name = pool_key(manifest), manifest["kind"], manifest["metadata"]["name"]
        if key is None or key not in found.uids:
            continue
        packed = found.expected.get((key, kind, name))
        if packed is None:
            if controller_uid(manifest["metadata"]) == found.uids[key]:
                found.surplus.setdefault(key, set()).add((kind, name))
        elif is_healthy(manifest, _unpack(packed)):
            found.children[key].add((kind, name))


def _pack(manifest: Manifest) -> bytes:
    """A manifest as few bytes: a thousand pools' worth of them waits for the listings of their children."""
    return zlib.compress(json.dumps(manifest).encode(), level=1)


def _unpack(packed: bytes) -> Manifest:
    manifest: Manifest = json.loads(zlib.decompress(packed))
    return manifest
