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

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def pages(self, resource: Resource, *, namespace: str | None, **_: Any) -> AsyncIterator[list[Manifest]]:
        self.asked.append(resource.kind)
        yield await self.list(resource, namespace=namespace or "")


def resync_of(kube: Paged, store: Store, memory: dict[str, int]) -> Resync:
    metrics = Metrics()
    queue: KeyedQueue[PoolKey] = KeyedQueue(on_start=metrics.queue_wait.observe)
    return Resync(
        kube=kube,  # type: ignore[arg-type]
        namespaces=None,
        store=store,
        queue=queue,
        catalog=load_catalog(),
        node_memory_bytes=memory,
        collector=Collector(kube),  # type: ignore[arg-type]
        metrics=metrics,
        wall_clock_s=lambda: 0.0,
        router_image=IMAGE,
    )


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
    store = Store()
    await resync_of(kube, store, {}).run_once()
    found = store.observed((pool.namespace, pool.name), {}).children
    assert (("Deployment", router["metadata"]["name"]) in found) is not changed


@pytest.mark.parametrize("may", [False, True])
async def test_nodes_are_asked_for_only_by_an_account_that_may_watch_them(may: bool) -> None:
    """A refusal every few minutes would be an alert, in an installation that is as somebody wanted it."""
    kube = Paged()
    (gpu,) = [one for one in load_catalog().gpus if one.name == "B200"]
    labels = {gpu.node_label_key: gpu.node_label_values[0]}
    for name, memory in (("a", "2Ti"), ("b", "1Ti")):
        metadata = {"name": name, "labels": labels}
        kube.put({"kind": "Node", "metadata": metadata, "status": {"allocatable": {"memory": memory}}})
    store, smallest = Store(), {"B200": 1}
    store.nodes.watched = may
    await resync_of(kube, store, smallest).run_once()
    assert ("Node" in kube.asked) is may
    assert smallest == ({"B200": 2**40} if may else {})
    assert (store.nodes.of({"a"}) is not None) is may
