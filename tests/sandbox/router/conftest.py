"""Two pools behind routers in a sandbox with the node agent: one to hurt, one with keys and tight limits.

Tests of this folder share both, and leave them as they were: what they cut, they wait for. Every test under a fault
reports how many streams broke and how many conversations lost their home; the figures are listed at the end.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster, start_cluster
from sandbox.cluster.engines import engine_process, processes_of
from sglpool.routing.keys import key_of
from sglpool.routing.pickerconfig import ADMIN_SOCKET, CLUSTER_NAME, HOMES_FILE, SHARED_DIR
from sglpool.routing.types import DEFAULT_CONFIG
from support.envoy_process import UnixConnection
from support.pool_on_cluster import ClusterPool, small_pool
from support.store_process import StoreProcess
from support.streaming import SESSION, Conversation, Reply, Streams, chat, send
from support.waiting import wait_until

Json = dict[str, Any]
READY_S = 120.0
API_KEY = "open-sesame"
CONVERSATIONS = 12
# A chunk for so many tokens: what these tests are about are connections, not tokens.
CHUNKY = ["--stream-interval=200"]
FIRST_WORDS = "\n".join(f"line {number}: the quick brown fox jumps over the lazy dog" for number in range(120))

_REPORT: list[Cost] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what each fault has cost."""
    if _REPORT:
        terminalreporter.section("cost of faults")
        for cost in _REPORT:
            terminalreporter.write_line(str(cost))


@dataclass(frozen=True)
class RouterPod:
    """One router pod: how to reach it and its processes."""

    manifest: Json

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def ip(self) -> str:
        return str(self.manifest["status"]["podIP"])

    @property
    def address(self) -> str:
        """Of the serving API."""
        return f"{self.ip}:8000"

    @property
    def shared(self) -> Path:
        """The folder that Envoy and picker share, as Envoy sees it."""
        return Path(f"/proc/{self.envoy().pid}/root{SHARED_DIR}")

    def picker(self) -> psutil.Process:
        return self._process("picker")

    def envoy(self) -> psutil.Process:
        return self._process("envoy")

    def _process(self, word: str) -> psutil.Process:
        metadata = self.manifest["metadata"]
        for process in processes_of(metadata["namespace"], metadata["name"]):
            command = process.cmdline()
            if any(part == word or part.endswith(f"/{word}") for part in command[:4]):
                return process
        raise LookupError(f"router pod {self.name} runs no {word}")

    def state(self) -> Json:
        """What its picker knows."""
        state: Json = send(f"{self.ip}:9000", "/state", timeout_s=5).json()
        return state

    def replica(self, pod: str) -> Json:
        """The same of one replica, {} while it is unknown."""
        return next((replica for replica in self.state()["replicas"] if replica["pod"] == pod), {})

    def usable(self) -> int:
        """Replicas that may take new conversations."""
        return sum(1 for each in self.state()["replicas"] if each["healthy"] and not each["draining"])

    def decisions(self) -> dict[str, float]:
        """Picks by the rule that decided."""
        text = send(f"{self.ip}:9000", "/metrics", timeout_s=5).body.decode()
        found = re.findall(r'^sglpool_router_decisions_total{rule="(\w+)"} (\S+)$', text, re.MULTILINE)
        return {rule: float(count) for rule, count in found}

    def homes(self) -> dict[str, str]:
        """Replica by session, both as the picker names them."""
        return _homes(send(f"{self.ip}:9000", "/homes", timeout_s=5).body)

    def homes_on_file(self) -> dict[str, str]:
        """The same as its last snapshot says."""
        path = self.shared / HOMES_FILE
        return _homes(path.read_bytes()) if path.exists() else {}

    def hosts(self) -> dict[str, bool]:
        """Replicas that Envoy knows by address, and whether its own choice may take them."""
        connection = UnixConnection(str(self.shared / ADMIN_SOCKET))
        try:
            connection.request("GET", "/clusters?format=json")
            clusters = json.loads(connection.getresponse().read())["cluster_statuses"]
        finally:
            connection.close()
        hosts = next((each.get("host_statuses", []) for each in clusters if each["name"] == CLUSTER_NAME), [])
        return {_address(host): _is_healthy(host["health_status"]) for host in hosts}


class RoutedPool:
    """A pool whose clients go through its router."""

    def __init__(self, cluster: AgentCluster, pool: ClusterPool, *, tokens: int, api_key: str = "") -> None:
        """Refer to a pool.

        Args:
            cluster: Where it is.
            pool: The pool.
            tokens: Of a long stream: it outlives every test, and its client hangs up.
            api_key: Sent with every request.
        """
        self.cluster = cluster
        self.pool = pool
        self.namespace = pool.namespace
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._tokens = tokens
        self._streams = 0
        self.conversations = [Conversation(f"agent-{number}") for number in range(CONVERSATIONS)]

    # What it is made of.

    def routers(self) -> list[RouterPod]:
        """Ready router pods that stay."""
        labels = f"sglpool.io/pool={self.pool.name},app.kubernetes.io/component=router"
        items = self.cluster.kubectl.json("get", "pods", "-n", self.namespace, "-l", labels)["items"]
        return [RouterPod(pod) for pod in items if "deletionTimestamp" not in pod["metadata"] and _all_ready(pod)]

    @property
    def router(self) -> RouterPod:
        """The router that tests talk to; the first one where there are two."""
        return min(self.routers(), key=lambda router: router.name)

    def engines(self) -> dict[str, Json]:
        return self.pool.pods()

    def wait_ready(self) -> None:
        """Until every replica and every router is, and the routers and their Envoys know it."""
        self.pool.wait_ready(READY_S)
        wait_until(self._is_known, timeout_s=60, describe=self._what_is_known)

    def _is_known(self) -> bool:
        spec = self.pool.get()["spec"]
        replicas, routers = spec["replicas"], self.routers()
        with contextlib.suppress(OSError, ValueError, LookupError):
            return len(routers) == spec["router"]["replicas"] and all(
                router.usable() == replicas == sum(router.hosts().values()) for router in routers
            )
        return False

    def _what_is_known(self) -> str:
        return "\n".join(f"{router.name}: {router.usable()} replicas, {router.hosts()}" for router in self.routers())

    # Its clients.

    def ask(self, session: str, *contents: str, router: RouterPod | None = None, **more: Any) -> Reply:
        """One short request of a conversation."""
        body = chat(*(contents or ("hello",)), **more)
        return send((router or self.router).address, body=body, **{SESSION: session}, **self.headers)

    def streams(self, count: int, router: RouterPod | None = None) -> Streams:
        """Long streams of new conversations, begun when nobody else is there: then they spread evenly."""
        asked = router or self.router
        soon(lambda: not any(each["load"] for each in asked.state()["replicas"]), "no replica has a load")
        self._streams += count
        first = self._streams - count
        sessions = [f"stream-{number}" for number in range(first, self._streams)]
        return self.open(asked, *sessions)

    def open(self, router: RouterPod, *sessions: str) -> Streams:
        """Long streams of these sessions."""
        return Streams(router.address, sessions, tokens=self._tokens, **self.headers)

    def warm(self) -> None:
        """Let every conversation begin, so that its context is warm where it lives."""
        for conversation in self.conversations:
            if not conversation.contents:
                reply = conversation.turn(self.router.address, f"{conversation.session}\n{FIRST_WORDS}", **self.headers)
                assert reply.status == 200, reply.body

    def turns(self, router: RouterPod | None = None) -> dict[str, Reply]:
        """One more turn of every conversation."""
        address = (router or self.router).address
        return {each.session: each.turn(address, **self.headers) for each in self.conversations}

    def homes(self, *sessions: str, router: RouterPod | None = None) -> dict[str, str]:
        """Replica uid by session, of those that have one."""
        return self.named((router or self.router).homes(), *sessions)

    def named(self, found: dict[str, str], *sessions: str) -> dict[str, str]:
        """The part of a router's homes that belongs to some sessions, without any: to the conversations."""
        names = sessions or tuple(each.session for each in self.conversations)
        return {name: found[hashed] for name in names if (hashed := _hashed(name)) in found}

    def pod_of(self, uid: str) -> str:
        """Name of the engine pod that a replica is a life of."""
        (name,) = [name for name, pod in self.engines().items() if pod["metadata"]["uid"] == uid.partition(".")[0]]
        return name

    def sglpool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`sglpool` as a user runs it, on this cluster and in the pool's namespace."""
        place = ["-n", self.namespace, "--kubeconfig", str(self.cluster.sandbox.kubeconfig)]
        command = [sys.executable, "-m", "sglpool", *arguments, *place]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def youngest_home_s(self) -> float:
        """Unix time at which the last of the replicas became ready that conversations live on."""
        uids = {uid.partition(".")[0] for uid in self.homes().values()}
        since_s = [_ready_since_s(pod) for pod in self.engines().values() if pod["metadata"]["uid"] in uids]
        return max(since_s, default=0.0)

    def on(self, uid: str, homes: dict[str, str]) -> set[str]:
        """Sessions that live on a replica."""
        return {session for session, home in homes.items() if home == uid}

    # What is done to it.

    def kill_engine(self, name: str) -> None:
        engine_process(self.engines()[name]).kill()

    def fault(self, name: str, *flags: str) -> None:
        self.cluster.told("fault", name, *flags, "-n", self.namespace)


def _hashed(session: str) -> str:
    key = key_of({SESSION: session})
    assert key is not None
    return key.session


def _ready_since_s(pod: Json) -> float:
    ready = next(each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()


def _all_ready(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    return bool(statuses) and all(status["ready"] for status in statuses)


def _homes(lines: bytes) -> dict[str, str]:
    records = map(json.loads, lines.splitlines()[1:])
    return {record["session"]: record["home"] for record in records if record.get("home")}


def _address(host: Json) -> str:
    place = host["address"]["socket_address"]
    return f"{place['address']}:{place['port_value']}"


def _is_healthy(health: Json) -> bool:
    return health.get("eds_health_status") == "HEALTHY" and not health.get("failed_active_health_check")


@dataclass
class Cost:
    """What a fault costs, as its test counts it."""

    name: str
    streams: int = 0
    broken: int = 0
    moved: int = 0
    turns: int = 0
    cold: int = 0
    slowest_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line for people."""
        parts = [
            f"{self.broken} of {self.streams} streams broken",
            f"{self.moved} homes moved",
            f"{self.cold} of {self.turns} turns cold",
            f"slowest turn {self.slowest_s:.2f} s",
            *(f"{what} after {seconds:.1f} s" for what, seconds in self.times.items()),
        ]
        return f"{self.name}: {', '.join(parts)}"

    def count_streams(self, streams: Streams) -> dict[str, str]:
        """Look which streams still flow; returns the broken ones."""
        broken = streams.flowing()
        self.streams += len(streams.all)
        self.broken += len(broken)
        return broken

    def count_turns(self, replies: dict[str, Reply], before: dict[str, str], after: dict[str, str]) -> set[str]:
        """Count conversations whose home is another one, and turns that found less than half of their cache.

        Returns:
            Those that moved.
        """
        assert {reply.status for reply in replies.values()} == {200}, "every conversation is served"
        moved = {session for session, home in before.items() if after.get(session) != home}
        self.moved += len(moved)
        self.turns += len(replies)
        self.slowest_s = max(self.slowest_s, *(reply.took_s for reply in replies.values()))
        self.cold += sum(1 for reply in replies.values() if reply.cached_tokens < reply.prompt_tokens / 2)
        return moved


@pytest.fixture
def cost(request: pytest.FixtureRequest) -> Iterator[Cost]:
    """What the test's fault costs, for the list at the end."""
    found = Cost(request.node.name.removeprefix("test_"))
    yield found
    _REPORT.append(found)


@pytest.fixture(scope="session")
def routed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentCluster]:
    """Four nodes of eight B200s and one without GPUs, for routers."""
    cluster = start_cluster(tmp_path_factory.mktemp("router") / "sandbox", {"B200": 4})
    yield cluster
    cluster.sandbox.down()


KIMI: Json = {
    "model": {
        "name": "m",
        "profile": "kimi-k2.6-nvfp4",
        "source": {"huggingFace": {"repo": "nvidia/Kimi-K2.6-NVFP4", "revision": "0" * 40}},
    },
    "kvCache": {},
    "tensorParallelSize": 4,
}
ENGINE: Json = WARM_UP | {"extraArgs": CHUNKY}


def make_pools(cluster: AgentCluster, namespace: str) -> dict[str, RoutedPool]:
    """Both pools of this folder, not applied yet."""
    kubectl = cluster.kubectl
    # Values of Secrets often end in a newline.
    data = {"anna": base64.b64encode(f"{API_KEY}\n".encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}
    kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(secret))
    main = small_pool("main", **KIMI, replicas=4, engine=ENGINE | {"maxRunningRequests": 4, "maxQueuedRequests": 1})
    limits: Json = {"maxConcurrentRequests": 2, "bodyLimit": "1Mi", "auth": {"apiKeysSecret": {"name": "keys"}}}
    closed = small_pool("closed", replicas=1, engine=ENGINE, router=limits)
    return {
        "main": RoutedPool(cluster, ClusterPool(kubectl, namespace, main), tokens=200_000),
        "closed": RoutedPool(cluster, ClusterPool(kubectl, namespace, closed), tokens=100_000, api_key=API_KEY),
    }


@pytest.fixture(scope="session")
def _pools(routed_cluster: AgentCluster) -> Iterator[dict[str, RoutedPool]]:
    """Both pools, begun together."""
    namespace = routed_cluster.namespace()
    pools = make_pools(routed_cluster, namespace)
    for pool in pools.values():
        pool.pool.apply()
    yield pools
    routed_cluster.empty(namespace)


@pytest.fixture
def routed(_pools: dict[str, RoutedPool]) -> RoutedPool:
    """Four Ready replicas of Kimi behind a router, and conversations that are warm on them."""
    pool = _pools["main"]
    pool.wait_ready()
    pool.warm()
    return pool


@pytest.fixture
def settled(_pools: dict[str, RoutedPool]) -> RoutedPool:
    """The same, where a replica may be on its way back, but none whose weight still ramps up has a conversation.

    From such a one they may move: its load counts for more.
    """
    pool = _pools["main"]
    wait_until(lambda: _is_settled(pool), timeout_s=READY_S + DEFAULT_CONFIG.ramp_s, describe="settled replicas")
    return pool


def _is_settled(pool: RoutedPool) -> bool:
    routers = pool.routers()
    if len(routers) < pool.pool.get()["spec"]["router"]["replicas"] or pool.router.usable() < 3:
        return False
    pool.warm()
    return time.time() - pool.youngest_home_s() > DEFAULT_CONFIG.ramp_s


@pytest.fixture
def closed(_pools: dict[str, RoutedPool]) -> RoutedPool:
    """One replica behind a router that wants a key, takes two requests and bodies up to 1 MiB."""
    pool = _pools["closed"]
    pool.wait_ready()
    return pool


@pytest.fixture(scope="session")
def store() -> Iterator[StoreProcess]:
    """A Valkey of the user's. It outlives the test that brings it in: the routers keep it."""
    with StoreProcess() as store:
        yield store


@pytest.fixture
def stopped() -> Iterator[Callable[[psutil.Process], None]]:
    """Freeze processes; they go on when the test has ended."""
    frozen: list[psutil.Process] = []

    def stop(process: psutil.Process) -> None:
        process.send_signal(signal.SIGSTOP)
        frozen.append(process)

    yield stop
    for process in frozen:
        if process.is_running():
            process.send_signal(signal.SIGCONT)


def soon(check: Callable[[], object], text: str, timeout_s: float = 20) -> float:
    """Wait for something; returns after how many seconds it was the case."""
    began_s = time.monotonic()
    wait_until(check, timeout_s=timeout_s, describe=text, interval_s=0.05)
    return time.monotonic() - began_s
