"""What a full listing finds: children that were changed by hand are missed, and so made anew."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sglpool.api.base import Manifest
from sglpool.api.pool import parse_pool
from sglpool.catalog import load_catalog
from sglpool.controller.collect import Collector
from sglpool.controller.metrics import Metrics
from sglpool.controller.queue import KeyedQueue
from sglpool.controller.resync import Resync
from sglpool.controller.store import PoolKey, Store
from sglpool.kube import Resource
from sglpool.plan.children import expected_router_children
from support import pools
from support.fake_kube import FakeKube

IMAGE = "example/sglpool:v1"


class Paged(FakeKube):
    """Everything in one page."""

    async def pages(self, resource: Resource, *, namespace: str | None, **_: Any) -> AsyncIterator[list[Manifest]]:
        yield await self.list(resource, namespace=namespace or "")


@pytest.mark.parametrize("changed", [False, True])
async def test_a_router_changed_by_hand_is_found_also_with_an_image_of_the_installation(changed: bool) -> None:
    manifest = pools.manifest({"router": {"enabled": True}}, metadata={"uid": "pool"})
    pool = parse_pool(manifest, router_image=IMAGE)
    (router,) = [c for c in expected_router_children(pool, pools.size(pool)) if c["kind"] == "Deployment"]
    kube = Paged()
    kube.put(manifest)
    live = copy.deepcopy(router)
    if changed:
        live["spec"]["template"]["spec"]["containers"][0]["image"] = "somebody/else:1"
    kube.put(live)
    store, metrics = Store(), Metrics()
    queue: KeyedQueue[PoolKey] = KeyedQueue(on_start=metrics.queue_wait.observe)
    resync = Resync(
        kube=kube,  # type: ignore[arg-type]
        namespaces=None,
        store=store,
        queue=queue,
        catalog=load_catalog(),
        node_memory_bytes={},
        collector=Collector(kube),  # type: ignore[arg-type]
        metrics=metrics,
        wall_clock_s=lambda: 0.0,
        router_image=IMAGE,
    )
    await resync.run_once()
    found = store.observed((pool.namespace, pool.name), {}).children
    assert (("Deployment", router["metadata"]["name"]) in found) is not changed
