"""The operator at a thousand pools: latency, a burst, idle writes, memory and a restart, on a real API server.

Two control planes of plain processes are brought up, one after the other, without nodes. On the first a bare client
writes what a burst of pools comes to; that is the floor. On the second the real operator process meets the same
burst, then single pools one at a time, then nothing at all, then a restart. Run it with
`python -m benchmarks.operator`; by its path alone it would shadow the standard library's `operator`.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare import BareClient, Observer
from benchmarks.common import RESULTS, Row, percentile, say, show, write_results
from benchmarks.pools import CHILDREN, NAMESPACE, PLACEHOLDER_UID, Prepared, prepare
from benchmarks.processes import OperatorProcess, control_plane, running

from sglpool.api import names
from sglpool.controller.app import OperatorOptions
from sglpool.kube.resources import STATEFULSETS

CREATORS = 8
"""Pools of a burst that are being created at any moment."""
WORKERS = OperatorOptions().workers
WARM_UP = tuple(f"warm-{i}" for i in range(5))
"""Pools written first: an API server that has just started builds its schemas at the first apply of each type."""
SETTLE_LIMIT_S = 120.0
PAUSE_S = 0.05
"""Between single pools: the status is still to come, and the next pool must not find this one's work in its way."""
QUIET_S = 5.0
"""The API server counts as quiet after this long without a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decides.

    Attributes:
        pools: Parked pools of the burst, present from then on.
        samples: Single pools whose latency is taken.
        idle_s: Length of the idle window in seconds.
    """

    pools: int
    samples: int
    idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A burst of pools, in seconds from the first pool sent.

    Attributes:
        statefulsets_s: Until the last StatefulSet was visible.
        children_s: Until the last child was visible.
    """

    statefulsets_s: float
    children_s: float


# --- the floor -------------------------------------------------------------------------------------------------------


async def floor(kubeconfig: Path, settings: Settings) -> tuple[Burst, list[float]]:
    """A burst, and single pools, written by a client that knows beforehand what to write.

    As many pools at a time as the operator has workers; of each first its children side by side, then its status:
    one request per object and one for the status, nothing read, nothing watched but the benchmark's own eyes.
    """
    warm_up, burst = prepare(WARM_UP), prepare([f"burst-{i:04d}" for i in range(settings.pools)])
    singles = prepare([f"single-{i:04d}" for i in range(settings.samples)])
    async with BareClient.connect(kubeconfig) as client, Observer(client, CHILDREN).watch(NAMESPACE) as observer:
        created: asyncio.Queue[tuple[Prepared, bytes]] = asyncio.Queue()
        writers = [asyncio.create_task(_write_created(client, created)) for _ in range(WORKERS)]
        await create_all(client, warm_up, created)
        await observer.wait_for(WARM_UP, limit_s=60)
        await quiet(client)
        begin_s = time.perf_counter()
        await asyncio.gather(*(create_all(client, burst[i::CREATORS], created) for i in range(CREATORS)))
        await observer.wait_for([p.name for p in burst], limit_s=600)
        found = _burst(observer, burst, begin_s)
        latencies_ms = []
        for one in singles:
            begin_s = time.perf_counter()
            await created.put((one, await client.apply(one.path, one.pool)))
            await observer.wait_for([one.name], limit_s=30)
            latencies_ms.append((observer.seen_s(one.name, STATEFULSETS) - begin_s) * 1000)
            await asyncio.sleep(PAUSE_S)
        for writer in writers:
            writer.cancel()
        return found, latencies_ms


async def create_all(
    client: BareClient, pools: Sequence[Prepared], created: asyncio.Queue[tuple[Prepared, bytes]] | None
) -> None:
    """Create pools, one after another."""
    for one in pools:
        answer = await client.apply(one.path, one.pool)
        if created is not None:
            created.put_nowait((one, answer))


async def _write_created(client: BareClient, created: asyncio.Queue[tuple[Prepared, bytes]]) -> None:
    while True:
        one, answer = await created.get()
        uid = json.loads(answer)["metadata"]["uid"].encode()
        bodies = [(path, body.replace(PLACEHOLDER_UID, uid)) for path, body in one.children]
        await asyncio.gather(*(client.apply(path, body, manager=names.MANAGER_TEMPLATE) for path, body in bodies))
        await client.patch_status(one.path, one.status)


def _burst(observer: Observer, pools: Sequence[Prepared], begin_s: float) -> Burst:
    return Burst(
        statefulsets_s=max(observer.seen_s(p.name, STATEFULSETS) for p in pools) - begin_s,
        children_s=max(observer.last_s(p.name) for p in pools) - begin_s,
    )


# --- the operator ---


async def burst_of_pools(client: BareClient, observer: Observer, settings: Settings) -> Burst:
    """Create all pools at once, and wait for their children."""
    warm_up, pools = prepare(WARM_UP), prepare([f"burst-{i:04d}" for i in range(settings.pools)])
    await create_all(client, warm_up, None)
    await observer.wait_for(WARM_UP, limit_s=60)
    await quiet(client)
    begin_s = time.perf_counter()
    await asyncio.gather(*(create_all(client, pools[i::CREATORS], None) for i in range(CREATORS)))
    await observer.wait_for([p.name for p in pools], limit_s=600)
    return _burst(observer, pools, begin_s)


async def single_pools(client: BareClient, observer: Observer, settings: Settings) -> list[float]:
    """Milliseconds from sending one pool until its StatefulSet is visible, one after another."""
    latencies_ms = []
    for one in prepare([f"single-{i:04d}" for i in range(settings.samples)]):
        begin_s = time.perf_counter()
        await client.apply(one.path, one.pool)
        await observer.wait_for([one.name], limit_s=30)
        latencies_ms.append((observer.seen_s(one.name, STATEFULSETS) - begin_s) * 1000)
        await asyncio.sleep(PAUSE_S)
    return latencies_ms


async def writes_while_idle(client: BareClient, operator: OperatorProcess, idle_s: float) -> tuple[int, int, float]:
    """Writes by anybody, the operator's own count, and the share of a CPU that it used, over a quiet window."""
    await quiet(client)
    before, figures, cpu_s = await client.writes(), await operator.figures(), operator.cpu_s()
    await asyncio.sleep(idle_s)
    after, now = await client.writes(), await operator.figures()
    own = sum(now.get(k, 0) - figures.get(k, 0) for k in now if k.startswith("requests:") and k not in _READS)
    return foreign_writes(before, after), int(own), (operator.cpu_s() - cpu_s) / idle_s


_READS = ("requests:get", "requests:list")
_NO_WRITES = ("leases", "selfsubjectaccessreviews")


def foreign_writes(before: Counter[str], after: Counter[str]) -> int:
    """All writes but those of Leases, which the API server renews for itself, and questions, which store nothing.

    There are no nodes and no pods: nobody else writes.
    """
    writes = {resource: count for resource, count in (after - before).items() if resource not in _NO_WRITES}
    if writes:
        say(f"writes: {writes}")
    return sum(writes.values())


async def quiet(client: BareClient) -> None:
    """Wait until controllers, garbage collector and operator have written nothing for a while."""
    async with asyncio.timeout(SETTLE_LIMIT_S):
        before, now = Counter[str](), await client.writes()
        while sum(now.values()) - now["leases"] != sum(before.values()) - before["leases"]:
            await asyncio.sleep(QUIET_S)
            before, now = now, await client.writes()


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """What was measured with the operator.

    Attributes:
        burst: The burst.
        requests: The operator's requests for each pool of the burst.
        latencies_ms: Of the single pools.
        idle_writes: Writes by anybody while idle, but Leases.
        own_idle_writes: Writes while idle by the operator's own count.
        idle_cpu: Share of a CPU that it used while idle.
        peak_bytes: Largest resident size, of both processes.
        steady_bytes: Median resident size while idle.
        restart_s: From the start of a new process until every pool was reconciled.
        restart_writes: Writes by anybody meanwhile.
    """

    burst: Burst
    requests: float
    latencies_ms: list[float]
    idle_writes: int
    own_idle_writes: int
    idle_cpu: float
    peak_bytes: int
    steady_bytes: float
    restart_s: float
    restart_writes: int


async def operate(kubeconfig: Path, log: Path, settings: Settings) -> Operated:
    """Everything that needs the operator."""
    total = len(WARM_UP) + settings.pools + settings.samples
    async with BareClient.connect(kubeconfig) as client:
        async with running(kubeconfig, log) as operator, Observer(client, CHILDREN).watch(NAMESPACE) as observer:
            await operator.caught_up(reconciles=0)
            say(f"{settings.pools} pools at once")
            burst = await burst_of_pools(client, observer, settings)
            await operator.caught_up(reconciles=settings.pools)
            figures = await operator.figures()
            await quiet(client)
            say(f"{settings.samples} pools, one after another")
            latencies_ms = await single_pools(client, observer, settings)
            say(f"{settings.idle_s:g} s of nothing")
            mark = len(operator.rss_bytes)
            idle_writes, own_idle_writes, idle_cpu = await writes_while_idle(client, operator, settings.idle_s)
            steady_bytes = percentile(operator.rss_bytes[mark:], 50)
            peak_bytes = operator.peak_bytes()
        say("a restart")
        before = await client.writes()
        async with running(kubeconfig, log) as operator:
            await operator.caught_up(reconciles=total, limit_s=120)
            restart_s = time.perf_counter() - operator.started_s
            await quiet(client)
            restart_writes = foreign_writes(before, await client.writes())
            peak_bytes = max(peak_bytes, operator.peak_bytes())
    return Operated(
        burst=burst,
        requests=figures["sglpool_api_requests_total"] / (settings.pools + len(WARM_UP)),
        latencies_ms=latencies_ms,
        idle_writes=idle_writes,
        own_idle_writes=own_idle_writes,
        idle_cpu=idle_cpu,
        peak_bytes=peak_bytes,
        steady_bytes=steady_bytes,
        restart_s=restart_s,
        restart_writes=restart_writes,
    )


def rows(settings: Settings, floor_burst: Burst, floor_ms: list[float], found: Operated) -> list[Row]:
    """The figures and their goals."""
    client, one_by_one = "bare client, same objects", "bare client: pool, then children"
    burst, pools = found.burst, settings.pools
    bare_requests = len(CHILDREN) + 1
    return [
        Row(
            figure=f"one pool applied to its StatefulSet visible, {pools} others parked, p50",
            value=percentile(found.latencies_ms, 50),
            unit="ms",
            goal=60,
            peer=one_by_one,
            peer_value=percentile(floor_ms, 50),
        ),
        Row(
            figure="the same, p99",
            value=percentile(found.latencies_ms, 99),
            unit="ms",
            goal=300,
            peer=one_by_one,
            peer_value=percentile(floor_ms, 99),
        ),
        Row(
            figure=f"{pools} pools at once to every StatefulSet visible",
            value=burst.statefulsets_s / floor_burst.statefulsets_s,
            unit="x the floor",
            goal=2.0,
        ),
        Row(
            figure=f"{pools} pools at once to every child visible",
            value=burst.children_s / floor_burst.children_s,
            unit="x the floor",
            goal=2.0,
        ),
        Row(
            figure="the burst to every child visible, in seconds",
            value=burst.children_s,
            unit="s",
            peer=client,
            peer_value=floor_burst.children_s,
        ),
        Row(
            figure="requests for a pool of the burst, reads included",
            value=found.requests,
            unit="requests",
            peer=client,
            peer_value=bare_requests,
        ),
        Row(
            figure=f"writes by anybody but Leases, counted by the API server, in {settings.idle_s:g} idle seconds",
            value=found.idle_writes,
            unit="writes",
            goal=0,
            peer="the operator's own count",
            peer_value=found.own_idle_writes,
        ),
        Row(figure="CPU while idle", value=found.idle_cpu * 100, unit="% of a core"),
        Row(figure="resident memory, peak", value=found.peak_bytes / 2**20, unit="MiB", goal=160),
        Row(figure="resident memory, median while idle", value=found.steady_bytes / 2**20, unit="MiB", goal=160),
        Row(figure="restart: start of the process to every pool reconciled", value=found.restart_s, unit="s", goal=20),
        Row(figure="restart: writes by anybody but Leases", value=found.restart_writes, unit="writes", goal=0),
    ]


def measure(settings: Settings) -> list[Row]:
    """Bring everything up, measure, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="sglpool-bench-") as folder:
        say("the floor")
        with control_plane(Path(folder) / "floor") as kubeconfig:
            floor_burst, floor_ms = asyncio.run(floor(kubeconfig, settings))
        say("the operator")
        with control_plane(Path(folder) / "operator") as kubeconfig:
            found = asyncio.run(operate(kubeconfig, Path(folder) / "operator.log", settings))
    return rows(settings, floor_burst, floor_ms, found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__)
    parser.add_argument("--pools", type=int, default=1000, help="parked pools (default 1000)")
    parser.add_argument("--samples", type=int, default=200, help="single pools for the latency (default 200)")
    parser.add_argument("--idle-s", type=float, default=300, help="length of the idle window (default 300)")
    parser.add_argument("--quick", action="store_true", help="100 pools, 20 samples, 20 s: a smoke test, not a figure")
    parser.add_argument("--out", type=Path, help="file of results (default benchmarks/results/operator.json)")
    options = parser.parse_args(arguments)
    settings = Settings(pools=options.pools, samples=options.samples, idle_s=options.idle_s)
    if options.quick:
        settings = Settings(pools=100, samples=20, idle_s=20)
    found = measure(settings)
    show("sglpool operator on one machine with etcd and the API server", found)
    if options.out or not options.quick:
        values = {"pools": settings.pools, "samples": settings.samples, "idleSeconds": settings.idle_s}
        write_results(options.out or RESULTS / "operator.json", benchmark="operator", settings=values, rows=found)


if __name__ == "__main__":
    main()
