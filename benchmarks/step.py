"""A load that doubles, until the StatefulSet is patched: the real operator on a real API server, in real time.

Some pools, each with a router whose state the benchmark serves over HTTP; their pods are nobody's, and the benchmark
says of them what a kubelet would. Every pool is steady for longer than the mean that the autoscaler takes, at another
share of what it should carry; then its requests in flight double, at a moment of its own within the tick. Taken is the
time from there until a watch shows a larger `spec.replicas`. Not here: how well the size fits (`autoscaler`).
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bare import BareClient
from benchmarks.common import Row, percentile
from benchmarks.pools import NAMESPACE, pool_manifest
from benchmarks.processes import control_plane, running

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.kube.resources import PODS, POOLS, STATEFULSETS
from sglpool.render.router_ports import STATE_PORT

POOLS_COUNT = 40
REPLICAS, TARGET = 5, 4
STEADY = (10, 16)
"""Requests in flight before the step, of 20 places: twice the fewest is too many, and the most with noise is not."""
NOISE = 0.1
STEADY_S = 75.0
"""Longer than the mean of a minute."""
TICK_S = 15.0
LIMIT_S = 90.0
START_LIMIT_S = 180.0
GOAL_S = 20.0
_SERVING = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


@dataclass(slots=True)
class _Pool:
    """One pool.

    Attributes:
        number: Which one.
        load: Requests in flight now.
        uids: Name by uid of its engine pods.
        router: Name of its router pod.
        replicas: spec.replicas as last seen.
        grown: Set when that has become larger.
        grown_s: When, monotonic.
    """

    number: int
    load: float
    uids: dict[str, str] = field(default_factory=dict)
    router: str = ""
    replicas: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    grown_s: float = 0.0

    @property
    def name(self) -> str:
        return f"pool-{self.number}"

    @property
    def address(self) -> str:
        return f"127.93.0.{self.number + 1}"

    def state(self, rng: random.Random) -> bytes:
        """What its router says, with a little noise."""
        in_flight = round(self.load * rng.uniform(1 - NOISE, 1 + NOISE))
        shares = [in_flight // len(self.uids) + (place < in_flight % len(self.uids)) for place in range(len(self.uids))]
        each = [
            {
                "uid": uid, "pod": pod, "in_flight": share, "queued": 0, "kv_used_tokens": 60_000 * share,
                "kv_total_tokens": 496_663, "conversations": 2 * share, "warm_tokens": None, "idle": share == 0,
                "last_poll_age_s": 0.4,
            }
            for (uid, pod), share in zip(self.uids.items(), shares, strict=True)
        ]  # fmt: skip
        state = {"pool": self.name, "router": self.router, "replicas": each, "in_flight": in_flight}
        return json.dumps(state | {"refused_conversations_last_minute": 0}).encode()


def step_rows(count: int = POOLS_COUNT) -> list[Row]:
    """Until the StatefulSet is patched, over so many pools."""
    with (
        tempfile.TemporaryDirectory(prefix="sglpool-step-") as folder,
        control_plane(Path(folder) / "cluster") as kubeconfig,
    ):
        took_s = asyncio.run(_steps(kubeconfig, Path(folder) / "operator.log", count))
    figure = f"load that doubles, real operator and API server, {count} steps: until the StatefulSet is patched"
    return [
        Row(figure=f"{figure}, p95", value=percentile(took_s, 95), unit="s", goal=GOAL_S),
        Row(figure="the same, p50", value=percentile(took_s, 50), unit="s"),
        Row(figure="the same, longest", value=max(took_s), unit="s"),
    ]


async def _steps(kubeconfig: Path, log: Path, count: int) -> list[float]:
    rng = random.Random(1)
    low, high = STEADY
    pools = {f"pool-{n}": _Pool(n, low + (high - low) * n / max(1, count - 1)) for n in range(count)}
    async with (
        BareClient.connect(kubeconfig) as client,
        running(kubeconfig, log) as operator,
        client.watch(STATEFULSETS, NAMESPACE, whole=True) as lines,
        _routers(pools, rng),
    ):
        await operator.caught_up(reconciles=0)
        following = asyncio.create_task(_follow(lines, pools))
        try:
            for pool in pools.values():
                await client.create(POOLS.path(NAMESPACE), _manifest(pool))
            await _bring_up(client, pools)
            await asyncio.sleep(STEADY_S)
            _check_steady(pools)
            return await asyncio.gather(*(_step(pool, rng.uniform(0, TICK_S)) for pool in pools.values()))
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def _step(pool: _Pool, at_s: float) -> float:
    """Seconds from the step of a pool, which comes after a while, to its first growth."""
    await asyncio.sleep(at_s)
    _check_steady({pool.name: pool})
    begin_s = time.monotonic()
    pool.load *= 2
    # A pool that never grows is the worst that can be, not a reason to lose the others.
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            await pool.grown.wait()
            return pool.grown_s - begin_s
    return LIMIT_S


def _check_steady(pools: dict[str, _Pool]) -> None:
    other = {pool.name: pool.replicas for pool in pools.values() if pool.replicas != REPLICAS}
    if other:
        raise AssertionError(f"before their step, pools have other than {REPLICAS} replicas: {other}")


async def _follow(lines: AsyncIterable[bytes], pools: dict[str, _Pool]) -> None:
    async for line in lines:
        seen_s, found = time.monotonic(), json.loads(line)["object"]
        pool = pools[found["metadata"]["labels"][names.LABEL_POOL]]
        pool.replicas = found["spec"]["replicas"]
        if pool.replicas > REPLICAS and not pool.grown.is_set():
            pool.grown_s = seen_s
            pool.grown.set()


async def _bring_up(client: BareClient, pools: dict[str, _Pool]) -> None:
    """Say of every pod that it serves, as soon as there is one."""
    async with asyncio.timeout(START_LIMIT_S):
        while any(len(pool.uids) < REPLICAS or not pool.router for pool in pools.values()):
            for pod in json.loads(await client.get(PODS.path(NAMESPACE)))["items"]:
                await _serve_pod(client, pools, pod)
            await asyncio.sleep(0.5)


async def _serve_pod(client: BareClient, pools: dict[str, _Pool], pod: Manifest) -> None:
    metadata = pod["metadata"]
    pool, component = pools[metadata["labels"][names.LABEL_POOL]], metadata["labels"][names.LABEL_COMPONENT]
    if component not in {names.COMPONENT_ENGINE, names.COMPONENT_ROUTER}:
        return
    if metadata["uid"] in pool.uids or metadata["name"] == pool.router:
        return
    status = {"phase": "Running", "podIP": pool.address, "podIPs": [{"ip": pool.address}], "conditions": [_SERVING]}
    await client.patch_status(PODS.path(NAMESPACE, metadata["name"]), json.dumps({"status": status}).encode())
    if component == names.COMPONENT_ROUTER:
        pool.router = metadata["name"]
    else:
        pool.uids[metadata["uid"]] = metadata["name"]


@asynccontextmanager
async def _routers(pools: dict[str, _Pool], rng: random.Random) -> Any:
    """Answer for every pool's router, at its address."""
    by_address = {pool.address: pool for pool in pools.values()}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            body = by_address[writer.get_extra_info("sockname")[0]].state(rng)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, list(by_address), STATE_PORT):
        yield


def _manifest(pool: _Pool) -> Manifest:
    manifest = pool_manifest(pool.name)
    spec = {name: value for name, value in manifest["spec"].items() if name not in {"replicas", "router"}}
    spec["gpus"] = [{"type": "B200", "memFractionStaticPercent": 90, "targetRunningRequests": TARGET}]
    spec["router"] = {"replicas": 1}
    return manifest | {"spec": spec | {"autoscaling": {"minReplicas": REPLICAS, "maxReplicas": 40}}}
