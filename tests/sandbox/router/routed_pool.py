"""A pool whose clients go through its router, and what a test does to it.

Not here: one router pod (`router_pod`), and what a fault has cost (`costs`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import engine_process, loads
from sandbox.router.costs import Turns
from sandbox.router.router_pod import RouterPod
from sglpool.routing.keys import key_of
from support.pool_on_cluster import ClusterPool, small_pool
from support.streaming import SESSION, Conversation, Reply, Streams, chat, send
from support.waiting import wait_until

Json = dict[str, Any]
READY_S = 120.0
API_KEY = "open-sesame"
CONVERSATIONS = 12
STREAMS_EACH = 2
ATTEMPTS = 4
MOMENT_S = 2.0
# A chunk for so many tokens: what these tests are about are connections, not tokens.
CHUNKY = ["--stream-interval=200"]
FIRST_WORDS = "\n".join(f"line {number}: the quick brown fox jumps over the lazy dog" for number in range(120))

# On eight GPUs the cache holds every stream of a test, however long it takes: no conversation is evicted.
KIMI: Json = {
    "model": {
        "name": "m",
        "profile": "kimi-k2.6-nvfp4",
        "source": {"huggingFace": {"repo": "nvidia/Kimi-K2.6-NVFP4", "revision": "0" * 40}},
    },
    "kvCache": {},
    "tensorParallelSize": 8,
}
ENGINE: Json = WARM_UP | {"extraArgs": CHUNKY}


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

    def as_now(self, router: RouterPod) -> RouterPod:
        """A router pod as the API server shows it now."""
        return RouterPod(self.cluster.kubectl.json("get", "pod", router.name, "-n", self.namespace))

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

    @contextlib.contextmanager
    def streams(self, count: int, router: RouterPod | None = None) -> Iterator[Streams]:
        """Long streams of new conversations, at most two on a replica: there is room for everybody's next turn.

        They begin when nobody else is there, so that they spread evenly. Where the machine kept the picker from
        answering in time and Envoy placed some by itself, they begin anew: a test counts what its own fault does.
        """
        asked = router or self.router
        for _ in range(ATTEMPTS):
            soon(lambda: not any(each["load"] for each in asked.state()["replicas"]), "no replica has a load")
            self._streams += count
            first = self._streams - count
            with self.open(asked, *[f"stream-{number}" for number in range(first, self._streams)]) as streams:
                requests, homes = self.requests(), self._counted_homes(asked, streams)
                if max(requests.values()) <= STREAMS_EACH and all(requests[pod] == homes[pod] for pod in requests):
                    yield streams
                    return
        raise AssertionError(f"{count} streams never spread evenly: engines have {requests}, their homes are {homes}")

    def _counted_homes(self, router: RouterPod, streams: Streams) -> Counter[str]:
        homes = self.homes(*[stream.session for stream in streams.all], router=router)
        return Counter(self.pod_of(uid) for uid in homes.values())

    def open(self, router: RouterPod, *sessions: str) -> Streams:
        """Long streams of these sessions."""
        return Streams(router.address, sessions, tokens=self._tokens, **self.headers)

    def warm(self) -> None:
        """Let every conversation begin, so that its context is warm where it lives."""
        for conversation in self.conversations:
            if not conversation.contents:
                reply = conversation.turn(self.router.address, f"{conversation.session}\n{FIRST_WORDS}", **self.headers)
                assert reply.status == 200, reply.body

    def turns(self, router: RouterPod | None = None) -> Turns:
        """One more turn of every conversation, and by which rule the picker placed it.

        Each begins when the one before has given its slot back: Envoy tells of ended requests every 20 ms, and people's
        agents take longer than that to go on.
        """
        asked = router or self.router
        turns = Turns({}, {})
        observed: tuple[int, dict[str, float]] | None = None
        with contextlib.suppress(OSError):
            observed = asked.in_flight(), asked.decisions()
        for each in self.conversations:
            turns.replies[each.session] = each.turn(asked.address, **self.headers)
            if observed is not None:
                before, counts = observed
                _wait_a_moment(lambda before=before: asked.in_flight() <= before)  # type: ignore[misc]
                observed = before, asked.decisions()
                turns.rules[each.session] = _grown(counts, observed[1])
        return turns

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

    def requests(self) -> dict[str, int]:
        """Requests of each engine that answers, as it says itself."""
        found = {}
        for name, pod in self.engines().items():
            with contextlib.suppress(OSError, LookupError):
                found[name] = requests_of(pod)
        return found

    def on(self, uid: str, homes: dict[str, str]) -> set[str]:
        """Sessions that live on a replica."""
        return {session for session, home in homes.items() if home == uid}

    # What is done to it.

    def kill_engine(self, name: str) -> None:
        engine_process(self.engines()[name]).kill()

    def fault(self, name: str, *flags: str) -> None:
        self.cluster.told("fault", name, *flags, "-n", self.namespace)


def requests_of(pod: Json) -> int:
    """Requests that an engine runs or queues."""
    now = loads(pod)
    return int(now["num_running_reqs"] + now["num_waiting_reqs"])


def _grown(before: dict[str, float], after: dict[str, float]) -> str:
    """What has been counted between two looks; nobody for a request that Envoy placed by itself."""
    return " ".join(rule for rule, count in after.items() if count > before.get(rule, 0)) or "nobody"


def _wait_a_moment(check: Callable[[], bool]) -> None:
    """Until it is so, but not for long: whoever broke it may have done so for good."""
    deadline_s = time.monotonic() + MOMENT_S
    while not check() and time.monotonic() < deadline_s:
        time.sleep(0.005)


def _hashed(session: str) -> str:
    key = key_of({SESSION: session})
    assert key is not None
    return key.session


def _all_ready(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    return bool(statuses) and all(status["ready"] for status in statuses)


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
        "main": RoutedPool(cluster, ClusterPool(kubectl, namespace, main), tokens=240_000),
        "closed": RoutedPool(cluster, ClusterPool(kubectl, namespace, closed), tokens=100_000, api_key=API_KEY),
    }


def soon(check: Callable[[], object], text: str, timeout_s: float = 20) -> float:
    """Wait for something; returns after how many seconds it was the case."""
    began_s = time.monotonic()
    wait_until(check, timeout_s=timeout_s, describe=text, interval_s=0.05)
    return time.monotonic() - began_s
