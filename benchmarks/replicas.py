"""A pool of many replicas in a whole sandbox on two cores: memory, start, CPU, and how late its engines get.

Not here: one engine by itself (engines.py).
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop
import yaml
from benchmarks.engines import Decoded, decoded, lag_s, server_info
from benchmarks.streams import Address, Stream, ask, machine_cpu_s

from sglpool.api import names
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.pod_commands import pod_address
from sglpool.sandbox.processes import ProcessTable

SAMPLE = Path(__file__).parents[1] / "manifests" / "samples" / "kimi-k2.6-coder.yaml"
GPUS_PER_NODE = 8
READY_LIMIT_S = 180.0
SPARE_S = 120.0
PROMPT_WORDS = 4000
_POLL_S = 0.2
_NAMESPACE = "/api/v1/namespaces/default"
_POOLS = f"/apis/{names.GROUP}/v1alpha1/namespaces/default/{names.PLURAL}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run.

    Attributes:
        replicas: Replicas of the pool, four GPUs each.
        speed: How many times faster than life.
        streams: Streams at the same time on each replica.
        tokens: Tokens of each stream; when it ends, another begins.
        seconds: For how long streams begin.
        idle_s: Length of the window without requests.
    """

    replicas: int
    speed: float
    streams: int
    tokens: int
    seconds: float
    idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured.

    Attributes:
        bare_bytes: Memory (PSS) of the sandbox before the pool: control plane, node agent, operator.
        idle_bytes: With every replica Ready.
        busy_bytes: After the streams.
        ready_s: Pool created to pool Ready.
        model_s: What the model itself takes for a start, from process to open port, in wall time.
        bare_cpu: Share of a core that all of it uses before the pool, once it has come up.
        idle_cpu: The same with every replica Ready, while nobody asks anything.
        busy_cpu: The same while the streams run.
        client_cpu: Share of a core of the client, which runs on the same cores.
        others_cpu: Share of a core of whoever else ran meanwhile and so disturbed the measurement.
        behind: By how much tokens took longer for clients than by the model's clock, mean of all streams.
        lag_s: The largest delay of a step, by the engines' own account.
        requests: Streams in all.
        tokens_per_s: Tokens of all replicas per second of wall time.
        events_per_s: Events of all streams per second of wall time.
        disturbed: Replicas that were not Ready, or had restarted, at the end.
    """

    bare_bytes: int
    idle_bytes: int
    busy_bytes: int
    ready_s: float
    model_s: float
    bare_cpu: float
    idle_cpu: float
    busy_cpu: float
    client_cpu: float
    others_cpu: float
    behind: float
    lag_s: float
    requests: int
    tokens_per_s: float
    events_per_s: float
    disturbed: int


def measure(folder: Path, settings: Settings) -> Found:
    """Bring a sandbox up, run the pool in it, and end it whatever happens."""
    sandbox = Sandbox(folder)
    with _two_cores():
        try:
            sandbox.up({"B200": -(-4 * settings.replicas // GPUS_PER_NODE)}, speed=settings.speed, operator=True)
            return _measure(sandbox, settings)
        finally:
            sandbox.down()


def _measure(sandbox: Sandbox, settings: Settings) -> Found:
    bare_cpu, bare_bytes = _idle_cpu(sandbox, settings.idle_s), _memory_bytes(sandbox)
    ready_s = _create_pool(sandbox, settings)
    addresses = [_address(pod) for pod in _pods(sandbox)]
    model_s = max(server_info(address)["startup_time"]["scheduler_e2e"] for address in addresses) / settings.speed
    idle_cpu, idle_bytes = _idle_cpu(sandbox, settings.idle_s), _memory_bytes(sandbox)
    before, begin_s = _decoded(addresses), time.perf_counter()
    before_s, own_s, all_s = _cpu_s(sandbox), time.process_time(), machine_cpu_s()
    streams = uvloop.run(_drive(addresses, settings))
    took_s = time.perf_counter() - begin_s
    busy_s, own_s, all_s = _cpu_s(sandbox) - before_s, time.process_time() - own_s, machine_cpu_s() - all_s
    by_model = _decoded(addresses).since(before)
    if by_model.requests != len(streams):
        raise RuntimeError(f"the engines ended {by_model.requests:g} streams, the client {len(streams)}")
    mean_s = sum(stream.last_s - stream.first_s for stream in streams) / len(streams)
    return Found(
        bare_bytes=bare_bytes,
        idle_bytes=idle_bytes,
        busy_bytes=_memory_bytes(sandbox),
        ready_s=ready_s,
        model_s=model_s,
        bare_cpu=bare_cpu,
        idle_cpu=idle_cpu,
        busy_cpu=busy_s / took_s,
        client_cpu=own_s / took_s,
        others_cpu=max(all_s - busy_s - own_s, 0.0) / took_s,
        behind=mean_s / (by_model.mean_s_per_token * (settings.tokens - 1) / settings.speed) - 1,
        lag_s=max(map(lag_s, addresses)),
        requests=len(streams),
        tokens_per_s=len(streams) * settings.tokens / took_s,
        events_per_s=sum(stream.events for stream in streams) / took_s,
        disturbed=sum(not _undisturbed(pod) for pod in _pods(sandbox)),
    )


# --- the pool --------------------------------------------------------------------------------------------------------


def _create_pool(sandbox: Sandbox, settings: Settings) -> float:
    """Create the pool and wait until it is Ready; returns the seconds that took."""
    pool: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    b200 = pool["spec"]["gpus"][0]
    pool["spec"] |= {"replicas": settings.replicas, "gpus": [b200 | {"maxReplicas": settings.replicas}]}
    begin_s = time.perf_counter()
    sandbox.api.create(_POOLS, pool)
    path = f"{_POOLS}/{pool['metadata']['name']}"
    while True:
        conditions = (sandbox.api.get(path).get("status") or {}).get("conditions") or []
        ready: dict[str, Any] = next((item for item in conditions if item["type"] == "Ready"), {})
        took_s = time.perf_counter() - begin_s
        if ready.get("status") == "True":
            return took_s
        if took_s > READY_LIMIT_S:
            raise RuntimeError(f"the pool is not Ready after {took_s:.0f} s: {ready}")
        time.sleep(_POLL_S)


def _pods(sandbox: Sandbox) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = sandbox.api.get(f"{_NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=engine")[
        "items"
    ]
    return pods


def _address(pod: dict[str, Any]) -> Address:
    host, _, port = pod_address(pod).rpartition(":")
    return host, int(port)


def _undisturbed(pod: dict[str, Any]) -> bool:
    status = pod["status"]
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", []))
    return ready and not any(container["restartCount"] for container in status.get("containerStatuses", []))


# --- the load --------------------------------------------------------------------------------------------------------


async def _drive(addresses: Sequence[Address], settings: Settings) -> list[Stream]:
    until_s = time.perf_counter() + settings.seconds
    done: list[Stream] = []

    async def one(address: Address, number: int) -> None:
        turn = 0
        while time.perf_counter() < until_s:
            content = f"stream {number}, turn {turn} " + "word " * PROMPT_WORDS
            stream = await ask(address, content, settings.tokens)
            await stream.done
            done.append(stream)
            turn += 1

    async with asyncio.timeout(settings.seconds + SPARE_S), asyncio.TaskGroup() as group:
        for address in addresses:
            for number in range(settings.streams):
                group.create_task(one(address, number))
    return done


def _decoded(addresses: Sequence[Address]) -> Decoded:
    found = [decoded(address) for address in addresses]
    return Decoded(sum(one.requests for one in found), sum(one.s_per_token for one in found))


# --- the processes ---------------------------------------------------------------------------------------------------


@contextmanager
def _two_cores() -> Iterator[None]:
    """Keep everything that is started in the block, and this process, on two cores."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(usable)[:2]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def _processes(sandbox: Sandbox) -> list[psutil.Process]:
    """Every process of the sandbox: its own, and what the node agent has started."""
    table = ProcessTable(sandbox.folder)
    own = [psutil.Process(table.pid(name)) for name in table.names()]
    return [*own, *(child for process in own for child in process.children(recursive=True))]


def _memory_bytes(sandbox: Sandbox) -> int:
    """Memory of all processes; what several share is counted once."""
    return sum(_pss_bytes(process.pid) for process in _processes(sandbox))


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(re.findall(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)[0]) * 1024


def _cpu_s(sandbox: Sandbox) -> float:
    """CPU time of all processes so far, with that of children which have ended."""
    return sum(map(_spent_s, _processes(sandbox)))


def _idle_cpu(sandbox: Sandbox, window_s: float) -> float:
    """Share of a core over a window in which nothing is asked."""
    before_s = _cpu_s(sandbox)
    time.sleep(window_s)
    return (_cpu_s(sandbox) - before_s) / window_s


def _spent_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0  # a probe's command; its parent has its time
    return float(times.user + times.system + times.children_user + times.children_system)
