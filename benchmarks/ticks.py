"""One tick over a thousand pools: their routers asked over HTTP, answers read, decisions made. CPU of the operator.

The routers are one process that answers what a router with so many replicas answers, at an address for each pool; its
CPU is not counted. Nothing is written: loads are steady. Not here: how good the decisions are (`autoscaler`).
"""

import asyncio
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

from benchmarks.common import Row
from benchmarks.pools import NAMESPACE, pool_manifest

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import parse_pool
from sglpool.catalog import load_catalog
from sglpool.controller.autoscaler import SHOW_S, Autoscaler
from sglpool.controller.metrics import Metrics
from sglpool.controller.store import Store
from sglpool.render.router_ports import STATE_PORT
from sglpool.signals import Sources
from sglpool.signals.tokens import Tokens
from sglpool.sizing.pools import size_pool

POOLS, AT_A_TIME = 1000, 64
REPLICAS, GOAL_S = (4, 20), 1.0
"""Replicas of a pool, and the goal in seconds of CPU."""
TICKS = 5
LONG_AGO = "2026-01-01T00:00:00Z"
START_LIMIT_S = 30.0


class _NoTokens(Tokens):
    """No pool here names a Secret."""

    def __init__(self) -> None:
        pass


def tick_rows() -> list[Row]:
    """CPU of a tick over all pools, by the number of replicas that each has."""
    return [_row(replicas) for replicas in REPLICAS]


def _row(replicas: int) -> Row:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    routers = context.Process(target=_serve, args=(there, replicas), daemon=True)
    routers.start()
    there.close()
    try:
        if not here.poll(START_LIMIT_S):
            raise TimeoutError(f"the routers of {POOLS} pools did not listen within {START_LIMIT_S:g} s")
        here.recv()
        took_s = asyncio.run(_tick(replicas))
    finally:
        routers.terminate()
        routers.join()
    return Row(
        figure=f"CPU of a tick over {POOLS:,} pools of {replicas} replicas, HTTP included",
        value=took_s,
        unit="s",
        goal=GOAL_S,
    )


async def _tick(replicas: int) -> float:
    """Seconds of CPU of a tick, the median of some: but for the first, at which everything is new."""
    store, asked = Store(), list[object]()
    async with Sources(_NoTokens()) as reader:
        autoscaler = Autoscaler(
            store=store, reader=reader, enqueue=asked.append, metrics=Metrics(), wall_clock_s=time.time
        )
        catalog = load_catalog()
        for number in range(POOLS):
            pool = parse_pool(_pool(number))
            for pod in (_pod(number, ordinal) for ordinal in range(replicas)):
                store.put_pod(pod)
            store.put_statefulset(_statefulset(number, replicas))
            store.put_pod(_router(number))
            sized = size_pool(pool, catalog, node_memory_bytes={}, hicache_bytes={})
            autoscaler.follow(pool, sized, store.observed((NAMESPACE, pool.name), {}))
        await _all_pools(autoscaler)
        asked.clear()
        begin_s = time.monotonic()
        took_s = [await _timed(autoscaler) for _ in range(TICKS)]
        # After a minute figures that have moved a little may be shown anew.
        quiet = not asked or time.monotonic() - begin_s > SHOW_S / 2
        views = [autoscaler.view((NAMESPACE, f"pool-{number}")) for number in range(POOLS)]
    read = sum(len(view.loads) for view in views)
    if read != POOLS * replicas or not quiet:
        raise AssertionError(f"{read} of {POOLS * replicas} replicas were read, {len(asked)} reconciles asked for")
    return statistics.median(took_s)


async def _timed(autoscaler: Autoscaler) -> float:
    started_s = time.process_time()
    await _all_pools(autoscaler)
    return time.process_time() - started_s


async def _all_pools(autoscaler: Autoscaler) -> None:
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        async with room:
            await autoscaler.tick((NAMESPACE, f"pool-{number}"))

    await asyncio.gather(*(one(number) for number in range(POOLS)))


def _serve(there: Connection, replicas: int) -> None:
    asyncio.run(_answer(there, replicas))


async def _answer(there: Connection, replicas: int) -> None:
    """Answer every request for a router's state, whoever it is by the address that was asked."""
    bodies = {_address(number): _state(number, replicas) for number in range(POOLS)}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = bodies[writer.get_extra_info("sockname")[0]]
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, list(bodies), STATE_PORT)
    there.send("listening")
    await server.serve_forever()


def _address(number: int) -> str:
    return f"127.90.{number // 250}.{number % 250 + 1}"


def _state(number: int, replicas: int) -> bytes:
    """What `picker.views` says, with two requests on every replica."""
    each = [
        {
            "uid": f"pod-{number}-{ordinal}", "pod": f"pool-{number}-b200-{ordinal}", "address": "10.0.0.1:30000",
            "gpu": "B200", "weight": 1.0, "ready": True, "healthy": True, "draining": False, "terminating": False,
            "unproven": False, "refused": False, "load": 2.0, "in_flight": 2, "others_in_flight": 0, "queued": 0,
            "max_concurrent": 28, "kv_used_tokens": 180_000, "kv_total_tokens": 496_663,
            "prefill_tokens_per_s": 16_000.0, "conversations": 9, "warm_tokens": None, "idle": False,
            "missed_polls": 0, "last_poll_age_s": 0.412,
        }
        for ordinal in range(replicas)
    ]  # fmt: skip
    state = {
        "pool": f"pool-{number}", "router": f"pool-{number}-router", "leaving": False, "replicas": each,
        "conversations": 9 * replicas, "in_flight": 2 * replicas, "refused_conversations_last_minute": 0,
        "store": {"configured": False, "available": True},
    }  # fmt: skip
    return json.dumps(state).encode()


def _pool(number: int) -> Manifest:
    """The usual pool of the benchmarks, but autoscaled and with a router."""
    manifest = pool_manifest(f"pool-{number}")
    manifest["metadata"]["uid"] = f"uid-{number}"
    spec = {name: value for name, value in manifest["spec"].items() if name not in {"replicas", "router"}}
    spec["gpus"] = [{"type": "B200", "memFractionStaticPercent": 90, "targetRunningRequests": 3}]
    return manifest | {"spec": spec | {"autoscaling": {"minReplicas": 1, "maxReplicas": 40}}}


def _metadata(number: int, name: str, uid: str, component: str, owner: str) -> Manifest:
    return {
        "namespace": NAMESPACE, "name": name, "uid": uid, "resourceVersion": "1", "creationTimestamp": LONG_AGO,
        "labels": names.child_labels(f"pool-{number}", component) | {names.LABEL_GPU: "B200"},
        "ownerReferences": [{"controller": True, "uid": owner, "kind": "Owner", "name": "owner"}],
    }  # fmt: skip


def _statefulset(number: int, replicas: int) -> Manifest:
    name = f"pool-{number}-b200"
    metadata = _metadata(number, name, f"set-{number}", names.COMPONENT_ENGINE, f"uid-{number}")
    return {"metadata": metadata, "spec": {"replicas": replicas}}


def _pod(number: int, ordinal: int) -> Manifest:
    name, uid = f"pool-{number}-b200-{ordinal}", f"pod-{number}-{ordinal}"
    metadata = _metadata(number, name, uid, names.COMPONENT_ENGINE, f"set-{number}")
    return {"metadata": metadata, "spec": {"nodeName": "node"}, "status": _serving("10.0.0.1")}


def _router(number: int) -> Manifest:
    name = f"pool-{number}-router"
    metadata = _metadata(number, name, f"router-{number}", names.COMPONENT_ROUTER, f"deployment-{number}")
    return {"metadata": metadata, "spec": {"nodeName": "node"}, "status": _serving(_address(number))}


def _serving(address: str) -> Manifest:
    return {"podIP": address, "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}]}
